package redisexec

import (
	"context"
	"time"

	"github.com/redis/go-redis/v9"
)

// A server may forget its scripts: after SCRIPT FLUSH, a restart or a failover. NOSCRIPT says that
// nothing was carried out, so the request is sent again with the script in full, after which the
// server knows it. A script has some kilobytes, where a request has some dozens of bytes. So of
// many requests one goes in full:
//
//   - of those in one pipeline, the first one (see inFull);
//   - of those that are sent at the same time, each by itself, also the first one (see sendWithSource).

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

// lacksScript reports whether the error says that the server does not know the request's script.
func (r Command) lacksScript(err error) bool {
	return err != nil && r.Script != nil && redis.HasErrorPrefix(err, "NOSCRIPT") // which allocates
}

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

// sendWithSource sends a request whose script the server does not know: by its digest once more if
// another attempt takes the script to the server just now, else in full. The other one may hang.
func (a *attempt) sendWithSource() error {
	l, over := load{a.request.Script, a.executor.NodeOf(a.request.Key())}, make(chan struct{})
	if other, isUnderWay := a.executor.loads.LoadOrStore(l, over); isUnderWay {
		select {
		case <-other.(chan struct{}):
		case <-time.After(loadPatience):
		case <-a.ctx.Done():
		}
		if err := a.process(a.request.Args); !a.request.lacksScript(err) {
			return err
		}
	} else {
		defer func() { // also if a hook of the client's ends the goroutine
			a.executor.loads.Delete(l)
			close(over)
		}()
	}
	return a.process(a.request.inFull())
}
