package main

import (
	"net/http"
	"slices"
	"sync"
	"time"
)

// API takes ten requests in any second, and three at a time.
type API struct {
	Took time.Duration // of a request

	mu       sync.Mutex  // guards what follows
	begun    []time.Time // in the last second
	running  int
	requests int
	refused  int
}

func (a *API) ServeHTTP(w http.ResponseWriter, _ *http.Request) {
	a.mu.Lock()
	defer a.mu.Unlock()
	now := time.Now()
	a.begun = slices.DeleteFunc(a.begun, func(t time.Time) bool { return now.Sub(t) >= time.Second })
	if len(a.begun) == 10 || a.running == 3 {
		a.refused++
		w.WriteHeader(http.StatusTooManyRequests)
		return
	}
	a.begun = append(a.begun, now)
	a.requests++
	a.running++
	a.mu.Unlock()
	time.Sleep(a.Took)
	a.mu.Lock()
	a.running--
}

// Taken returns how many requests it has taken.
func (a *API) Taken() int {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.requests
}

// Refused returns how many it has not.
func (a *API) Refused() int {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.refused
}
