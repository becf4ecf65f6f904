module deepep

go 1.19
