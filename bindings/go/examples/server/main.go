// Server is a loop as an inference server has it: requests of a few tokens arrive at random times, four ranks take them
// through a layer of sixteen experts, and two batches are in flight at a time, so that the rows of one travel while the
// experts work on the other. The answers are compared with a direct computation.
package main

import (
	"flag"
	"fmt"
	"log"
	"math/rand"
	"sync"
	"time"
)

func main() {
	clients := flag.Int("clients", 16, "goroutines that send requests")
	requests := flag.Int("requests", 50, "requests of each")
	flag.Parse()
	s, err := newServer(4)
	if err != nil {
		log.Fatal(err)
	}
	begin := time.Now()
	tokens, err := load(s, *clients, *requests)
	if failed := s.close(); failed != nil {
		err = failed
	}
	if err != nil {
		log.Fatal(err)
	}
	fmt.Printf("%d requests, %d tokens, all answers right; %.0f tokens/s, %d batches overlapped\n",
		*clients**requests, tokens, float64(tokens)/time.Since(begin).Seconds(), s.ranks[0].overlapped)
}

// load sends requests from many clients at random times and compares every answer.
func load(s *server, clients, requests int) (tokens int, err error) {
	var lock sync.Mutex
	var all sync.WaitGroup
	for c := 0; c < clients; c++ {
		all.Add(1)
		go func(seed int64) {
			defer all.Done()
			n, failed := client(s, rand.New(rand.NewSource(seed)), requests)
			lock.Lock()
			defer lock.Unlock()
			tokens += n
			if err == nil {
				err = failed
			}
		}(int64(c))
	}
	all.Wait()
	return tokens, err
}

func client(s *server, r *rand.Rand, requests int) (tokens int, err error) {
	for i := 0; i < requests; i++ {
		time.Sleep(time.Duration(r.Intn(1000)) * time.Microsecond)
		batch := make([]float32, r.Intn(9)*hidden)
		for j := range batch {
			batch[j] = float32(r.Intn(256))
		}
		answer, err := s.submit(batch)
		if err != nil {
			return tokens, err
		}
		for j, want := range direct(batch) {
			if answer[j] != want {
				return tokens, fmt.Errorf("element %d of an answer is %v, want %v", j, answer[j], want)
			}
		}
		tokens += len(batch) / hidden
	}
	return tokens, nil
}
