package redisexec

import (
	"context"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"
)

// A server may forget its scripts: after SCRIPT FLUSH, a restart or a failover. NOSCRIPT says that
// nothing was carried out, so the request is sent again with the script in full, after which the
// server knows it. A script has some kilobytes, where a request has some dozens of bytes. So of
// many requests one goes in full:
//
//   - of those in one pipeline, the first one (see inFull);
//   - of those that are sent at the same time, each by itself, also the first one (see loads).

const (
	// moreInFull is by how many times as many requests go in full when the script is still not
	// known: the server has refused the first one before it looked at the script, or the first one
	// went to another server.
	moreInFull = 32
	// loadPatience is how long a request waits for another one that takes its script to the server.
	loadPatience = 250 * time.Millisecond
)

// load is a script on its way to a server.
type load struct {
	script *Script
	node   any // see NodeOf
}

// isUnknown reports whether the error says that the server does not know the request's script.
func (r Request) isUnknown(err error) bool { return r.Script != nil && isNoScript(err) }

// inFull chooses, of those of the requests, the first n of each script for each server. They go in
// full, and those behind them in the same pipeline by the digest.
func (e *Executor) inFull(requests []Request, which []int, n int) (full map[int]bool) {
	if n == 0 {
		return nil
	}
	full, chosen := map[int]bool{}, map[load]int{}
	for _, at := range which {
		if requests[at].Script == nil {
			continue
		}
		l := load{requests[at].Script, e.NodeOf(requests[at].Key())}
		if chosen[l]++; chosen[l] <= n {
			full[at] = true
		}
	}
	return full
}

// newCommand returns a request as it is sent.
func newCommand(ctx context.Context, r Request, full bool) *command {
	args := r.Args
	if full {
		args = r.inFull()
	}
	return &command{Cmd: redis.NewCmd(ctx, args...)}
}

// loads are the scripts that attempts take to servers.
type loads struct {
	mu       sync.Mutex // guards underWay
	underWay map[load]chan struct{}
}

// begin returns true if no other attempt takes the script to the server. The caller does then, and
// calls end. Otherwise it waits for that attempt, but not for long, since its connection may hang.
func (s *loads) begin(ctx context.Context, l load) bool {
	s.mu.Lock()
	other, found := s.underWay[l]
	if !found {
		s.underWay[l] = make(chan struct{})
	}
	s.mu.Unlock()
	if !found {
		return true
	}
	timer := time.NewTimer(loadPatience)
	defer timer.Stop()
	select {
	case <-other:
	case <-timer.C:
	case <-ctx.Done():
	}
	return false
}

func (s *loads) end(l load) {
	s.mu.Lock()
	defer s.mu.Unlock()
	close(s.underWay[l])
	delete(s.underWay, l)
}

// sendUnknown sends a request whose script the server does not know.
func (a *attempt) sendUnknown() error {
	l := load{a.request.Script, a.executor.NodeOf(a.request.Key())}
	if a.executor.loads.begin(a.ctx, l) {
		defer a.executor.loads.end(l) // also if a hook of the client's ends the goroutine
	} else if err := a.process(a.request.Args); !isNoScript(err) {
		return err
	}
	return a.process(a.request.inFull())
}
