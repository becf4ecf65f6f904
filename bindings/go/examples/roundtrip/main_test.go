package main

import (
	"bytes"
	"log"
	"os"
	"strings"
	"testing"
)

func TestRoundtrip(t *testing.T) {
	var text bytes.Buffer
	log.SetOutput(&text)
	defer log.SetOutput(os.Stderr)
	main()
	if !strings.Contains(text.String(), "every token came back") {
		t.Errorf("it printed %q", &text)
	}
}

// TestReadme: what the project's README shows is this program.
func TestReadme(t *testing.T) {
	readme, err := os.ReadFile("../../../../README.md")
	if err != nil {
		t.Skipf("outside the source tree: %v", err)
	}
	program, err := os.ReadFile("main.go")
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Contains(readme, append([]byte("```go\n"), append(program, "```\n"...)...)) {
		t.Error("README.md shows another program")
	}
}
