package main

import (
	"errors"
	"testing"

	"deepep"
)

func TestServer(t *testing.T) {
	s, err := newServer(4)
	if err != nil {
		t.Fatal(err)
	}
	tokens, err := load(s, 16, 40)
	if err != nil {
		t.Error(err)
	}
	if err := s.close(); err != nil {
		t.Error(err)
	}
	if tokens == 0 || s.ranks[0].overlapped == 0 {
		t.Errorf("%d tokens, %d batches overlapped", tokens, s.ranks[0].overlapped)
	}
	if _, err := s.submit(nil); err != errStopped {
		t.Errorf("a request after the end: %v", err)
	}
}

// TestServerFails: when a rank fails, every client gets an error and the server still ends.
func TestServerFails(t *testing.T) {
	s, err := newServer(4)
	if err != nil {
		t.Fatal(err)
	}
	if err := s.ranks[1].buffer.Comm().Abort("pulled the plug"); err != nil {
		t.Fatal(err)
	}
	if _, err := load(s, 8, 4); !errors.Is(err, deepep.ErrAborted) {
		t.Errorf("clients of a failed server: %v", err)
	}
	if err := s.close(); !errors.Is(err, deepep.ErrAborted) {
		t.Errorf("the end of a failed server: %v", err)
	}
}
