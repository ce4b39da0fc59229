package watch

import "time"

// share is this client's part of the asking. Some of those that are counted as waiting may never
// claim: processes that were stopped, connections of hosts that are gone.
type share struct {
	fed   bool    // the last claim has brought a task: this client asks for the next one too
	late  bool    // callers were told of a head that had been due for a while: no other has asked
	eager float64 // by how many times as often as its share this client asks; 0 for once
}

const (
	// lateAfter is how long a head that was announced has been due when it seems that those who
	// should have asked for it never will.
	lateAfter = 100 * time.Millisecond
	// maxEager bounds how often a client asks.
	maxEager = 1 << 20
	// calmer is by how much a client asks less often after a claim that has brought nothing.
	calmer = 0.99
)

// claimed takes whether a claim has brought tasks.
func (s *share) claimed(brought bool) {
	s.fed = brought
	s.eager = max(s.eager, 1)
	if !brought {
		s.eager = max(s.eager*calmer, 1)
	} else if s.late {
		s.eager = min(s.eager*2, maxEager)
	}
	s.late = false
}

// of returns an announcement as this client takes it.
func (s *share) of(a announcement) announcement {
	if s.fed {
		a.clients = 0
	}
	a.clients = int(float64(a.clients) / max(s.eager, 1))
	return a
}
