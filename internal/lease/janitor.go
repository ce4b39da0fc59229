package lease

import (
	"context"
	"slices"
	"sync"
	"time"

	"github.com/sluice-go/sluice/internal/background"
	"github.com/sluice-go/sluice/internal/redisexec"
	"github.com/sluice-go/sluice/internal/shrink"
)

const (
	// maxReleases is the most releases that one pipeline has.
	maxReleases = 250
	// releaseRetry is the pause after a release that got no answer.
	releaseRetry = 250 * time.Millisecond
	// releaseAgain is when a release is repeated after its first answer. What the
	// server had received, but not read, before that answer is done by then.
	releaseAgain = 500 * time.Millisecond
	// releaseFor is for how long a release is tried while the server does not answer. A
	// key that appears later still ends with its TTL.
	releaseFor = 2 * time.Minute
)

// Janitor releases what may have been acquired without the acquirer knowing: the reply
// was lost, or the caller's context ended first.
//
// The acquisition may be carried out even after a release has been. So a token is
// released until the server answers, once more shortly after that, and once more after
// the client's longest command time. No release too many can hit another holder: a token
// is for one stay of the key on the server, and the janitor is only given a token that
// no handle holds, or that is on its way back to Redis.
//
// One goroutine does it for all tokens (the loop: started by Add; it ends when nothing is
// left, or in Close), with one pipeline at a time to each server, each from a goroutine
// of its own. So a server that hangs costs the user's pool one connection, and the other
// servers no time. The executor's Close waits for all of them.
type Janitor struct {
	executor    *redisexec.Executor
	commandTime time.Duration
	loop        *background.Loop

	mu      sync.Mutex              // guards what follows
	pending map[any]*pendingRelease // by token
	peak    int                     // the most of them so far, see shrink.Map
	asked   map[any]bool            // servers that a pipeline is under way to, see redisexec.Executor.NodeOf
	closed  bool
}

// pendingRelease is a token that is to be released. It belongs to the janitor, whose
// mutex guards the map in which it is.
type pendingRelease struct {
	request redisexec.Request
	next    time.Time
	answers int       // so many releases were answered
	giveUp  time.Time // if none is
}

// NewJanitor returns a janitor that sends through executor, whose client spends at most
// commandTime on a command. It starts nothing.
func NewJanitor(executor *redisexec.Executor, commandTime time.Duration) *Janitor {
	j := &Janitor{
		executor: executor, commandTime: commandTime,
		pending: map[any]*pendingRelease{}, asked: map[any]bool{},
	}
	j.loop = background.NewLoop(executor.Go, j.turn)
	return j
}

// Add has the release of a token carried out, beginning now. It does not block. After
// Close the release is sent once.
func (j *Janitor) Add(token any, release redisexec.Request) {
	j.mu.Lock()
	defer j.mu.Unlock()
	if j.closed {
		j.sendOnce([]redisexec.Request{release})
		return
	}
	now := time.Now()
	j.pending[token] = &pendingRelease{request: release, next: now, giveUp: now.Add(releaseFor)}
	j.loop.Wake()
}

// Len returns how many tokens are still to be released.
func (j *Janitor) Len() int {
	j.mu.Lock()
	defer j.mu.Unlock()
	return len(j.pending)
}

// Close sends once more what is left, in the background, and ends the loop. It does not
// wait.
func (j *Janitor) Close() {
	j.mu.Lock()
	defer j.mu.Unlock()
	j.closed = true
	requests := make([]redisexec.Request, 0, len(j.pending))
	for _, p := range j.pending {
		requests = append(requests, p.request)
	}
	j.pending = map[any]*pendingRelease{}
	for part := range slices.Chunk(requests, maxReleases) {
		j.sendOnce(part)
	}
	j.loop.Wake()
}

func (j *Janitor) sendOnce(requests []redisexec.Request) {
	j.executor.Go(func() { j.executor.SendAll(context.Background(), requests) })
}

// turn is one turn of the loop: it sends the releases that are due on one server.
func (j *Janitor) turn() time.Duration {
	j.mu.Lock()
	defer j.mu.Unlock()
	if len(j.pending) == 0 {
		return background.Idle
	}
	node, due, pause := j.findDue(time.Now())
	if len(due) == 0 {
		return pause
	}
	j.asked[node] = true
	j.executor.Go(func() { j.send(node, due) })
	return 0
}

// findDue returns what is to be released now, on one server, and how long until
// something else is.
func (j *Janitor) findDue(now time.Time) (node any, due map[any]*pendingRelease, pause time.Duration) {
	due, pause = map[any]*pendingRelease{}, time.Hour
	for token, p := range j.pending {
		if left := p.next.Sub(now); left > 0 {
			pause = min(pause, left)
			continue
		}
		at := j.executor.NodeOf(p.request.Key())
		if len(due) == 0 && !j.asked[at] {
			node = at
		}
		if at == node && !j.asked[at] && len(due) < maxReleases {
			due[token] = p
			p.next = now.Add(releaseFor) // not again while it is under way, wherever its key may move
		}
	}
	return node, due, pause
}

// send sends each release once, and dates or drops it by what came of it. It runs in a
// goroutine of its own.
func (j *Janitor) send(node any, due map[any]*pendingRelease) {
	tokens, requests := make([]any, 0, len(due)), make([]redisexec.Request, 0, len(due))
	for token, p := range due {
		tokens, requests = append(tokens, token), append(requests, p.request)
	}
	results := j.executor.SendAll(context.Background(), requests)

	j.mu.Lock()
	defer j.mu.Unlock()
	delete(j.asked, node)
	now := time.Now()
	for i, token := range tokens {
		if p := due[token]; j.pending[token] == p { // not added anew meanwhile
			j.date(token, p, results[i].Err == nil, now)
		}
	}
	j.pending = shrink.Map(j.pending, &j.peak)
	j.loop.Wake()
}

// date says when a release is tried again, or drops it.
func (j *Janitor) date(token any, p *pendingRelease, answered bool, now time.Time) {
	switch {
	case !answered && now.Before(p.giveUp):
		p.next = now.Add(releaseRetry)
	case answered && p.answers == 0:
		p.answers++
		p.next = now.Add(releaseAgain)
	case answered && p.answers == 1:
		p.answers++
		p.next = now.Add(j.commandTime)
	default:
		delete(j.pending, token)
	}
}
