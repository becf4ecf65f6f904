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
