package lease

import (
	"slices"
	"sync"
	"time"

	"github.com/sluice-go/sluice/internal/background"
	"github.com/sluice-go/sluice/internal/backoff"
	"github.com/sluice-go/sluice/internal/redisexec"
	"github.com/sluice-go/sluice/internal/shrink"
)

const (
	// maxReleases is the most releases that one pipeline has.
	maxReleases = 250
	// releaseRetry is the pause after a release that got no answer.
	releaseRetry = 250 * time.Millisecond
	// releaseAgain is the first pause between two releases of a token that may yet take its key.
	// What the server had received, but not read, before the first answer is done by then.
	releaseAgain = 500 * time.Millisecond
	// releaseFor is for how long a release is tried at least while the server does not answer.
	releaseFor = 2 * time.Minute
	// maxLate is how many tokens the janitor has at most when it is given one more that may yet
	// take its key: some 65 MB.
	maxLate = 100_000
)

// Janitor releases what may have been acquired without the acquirer knowing: the reply
// was lost, or the caller's context ended first.
//
// The acquisition may be carried out even after a release has been: it may lie in a network or
// in the buffer of a server that is stopped for as long as you like. So the token is released
// again, half a second after the first answer, and then after pauses of which each is twice as
// long as the one before. What comes late has its key for half a second, and for as long as it
// was late, at most. It ends when a pause is longer than the key's life, which no release makes
// shorter then, or when a release has found the key: a token is in one request only.
//
// No release too many can hit another holder: a token is for one stay of the key on the
// server, and the janitor is only given a token that no handle holds, or that is on its way
// back to Redis.
//
// It also asks what holders have inspected: a question is a release that releases nothing, and is
// asked until it is answered. A newer one takes its place.
//
// One goroutine for each server, its loop, does it, with one pipeline at a time. So a server that
// hangs costs the other servers no time, and the user's pool one connection every five seconds until
// go-redis gives them up.
type Janitor struct {
	executor *redisexec.Executor

	mu       sync.Mutex              // guards what follows
	pending  map[any]*pendingRelease // by token
	peak     int                     // the most of them so far, see shrink.Map
	backlogs map[any]*backlog        // by server, see redisexec.Executor.NodeOf; none if nothing is pending
	closed   bool
}

// backlog is what is to be released on one server.
type backlog struct {
	loop    *background.Loop
	waiting schedule[*pendingRelease] // without what the pipeline has that is under way
	rests   time.Time                 // until when none is sent: all of the last had no answer
}

// Release is a token that is to be released, and the request that does it; or a question.
type Release struct {
	Token    any // which no other Release has; of a question the one that asks
	Request  redisexec.Request
	Life     time.Duration   // for how long the key may live, if nothing extends it any more
	Late     bool            // a request that takes the key may yet be carried out
	Answered func(value any) // is called with the answer, unless it is nil
}

// pendingRelease is a token that is to be released. It belongs to the janitor, whose
// mutex guards all except the Release, which does not change.
type pendingRelease struct {
	place
	Release
	in     *backlog      // where it waits, or did before it was sent
	pause  time.Duration // between the last two that were answered; 0 before the first
	giveUp time.Time     // if none is answered any more
}

// NewJanitor returns a janitor that sends through executor. It starts nothing.
func NewJanitor(executor *redisexec.Executor) *Janitor {
	return &Janitor{executor: executor, pending: map[any]*pendingRelease{}, backlogs: map[any]*backlog{}}
}

// Add has a token released, beginning now. It does not block. After Close the release is
// sent once. One that is Late takes the place of another, if there are maxLate: the key of that
// ends with its TTL.
func (j *Janitor) Add(r Release) {
	id := j.executor.NodeOf(r.Request.Key())
	j.mu.Lock()
	defer j.mu.Unlock()
	if j.closed {
		j.sendOnce(r)
		return
	}
	j.add(r, id)
}

// add is Add for a release on this server. The mutex is held.
func (j *Janitor) add(r Release, id any) {
	if old := j.pending[r.Token]; old != nil {
		j.drop(old)
	}
	if r.Late && len(j.pending) >= maxLate {
		j.dropAny()
	}
	now := time.Now()
	p := &pendingRelease{Release: r, giveUp: now.Add(max(r.Life, releaseFor))}
	j.pending[r.Token] = p
	j.wait(p, id, now)
}

// wait has a token released at that time, on that server.
func (j *Janitor) wait(p *pendingRelease, id any, at time.Time) {
	b := j.backlogs[id]
	if b == nil {
		b = &backlog{}
		// It ends when nothing is left on its server, or in Close. The executor's Close waits for it.
		b.loop = background.NewLoop(j.executor.Go, func() time.Duration { return j.turn(b) })
		j.backlogs[id] = b
	}
	p.in = b
	b.waiting.set(p, at)
	b.loop.Wake()
}

// drop forgets a token.
func (j *Janitor) drop(p *pendingRelease) {
	p.in.waiting.remove(p)
	delete(j.pending, p.Token)
}

// dropAny forgets one token: one that is Late, if there is one among a few.
func (j *Janitor) dropAny() {
	looks := 64
	for _, p := range j.pending {
		if looks--; p.Late || looks == 0 {
			j.drop(p)
			return
		}
	}
}

// Len returns how many tokens are still to be released.
func (j *Janitor) Len() int {
	j.mu.Lock()
	defer j.mu.Unlock()
	return len(j.pending)
}

// Close sends once more what is left, in the background, and ends the loops. It does not
// wait.
func (j *Janitor) Close() {
	var left []Release
	for _, p := range j.end() { // without the mutex: they may be very many
		left = append(left, p.Release)
	}
	j.sendOnce(left...)
}

// end closes the janitor, and returns what it has not released.
func (j *Janitor) end() (left map[any]*pendingRelease) {
	j.mu.Lock()
	defer j.mu.Unlock()
	j.closed, left = true, j.pending
	for _, b := range j.backlogs {
		b.waiting = nil
		b.loop.Wake()
	}
	j.pending, j.backlogs = map[any]*pendingRelease{}, map[any]*backlog{}
	return left
}

// sendOnce sends releases once: to each server in pipelines of its own, all of them at the same
// time.
func (j *Janitor) sendOnce(releases ...Release) {
	byServer := map[any][]redisexec.Request{}
	for _, r := range releases {
		id := j.executor.NodeOf(r.Request.Key())
		byServer[id] = append(byServer[id], r.Request)
	}
	for _, requests := range byServer {
		for part := range slices.Chunk(requests, maxBatch) {
			// It ends after MaxQuiet at most. The executor's Close waits for it.
			j.executor.Go(func() { j.executor.BoundedPipeline(part) })
		}
	}
}

// turn is one turn of a server's loop: it sends what is due there.
func (j *Janitor) turn(b *backlog) time.Duration {
	due, pause := j.due(b)
	if len(due) > 0 {
		j.send(b, due)
	}
	return pause
}

// due takes what is to be released now. pause is how long there is nothing more to be done.
func (j *Janitor) due(b *backlog) (due []*pendingRelease, pause time.Duration) {
	j.mu.Lock()
	defer j.mu.Unlock()
	now := time.Now()
	for len(b.waiting) > 0 && len(due) < maxReleases && !backoff.Later(b.waiting[0].at, b.rests).After(now) {
		due = append(due, b.waiting[0])
		b.waiting.remove(b.waiting[0])
	}
	next, ok := b.waiting.next()
	switch {
	case len(due) > 0:
		return due, 0
	case ok:
		return nil, backoff.Later(next, b.rests).Sub(now)
	case len(j.pending) == 0:
		clear(j.backlogs)
	}
	return nil, background.Idle
}

// send sends each release once, and dates or drops it by what came of it.
func (j *Janitor) send(b *backlog, due []*pendingRelease) {
	requests, ids := make([]redisexec.Request, len(due)), make([]any, len(due))
	for i, p := range due {
		requests[i] = p.Request
	}
	results := j.executor.BoundedPipeline(requests)
	for i, p := range due {
		ids[i] = j.executor.NodeOf(p.Request.Key()) // it may have moved
		if p.Answered != nil && results[i].Err == nil {
			p.Answered(results[i].Value)
		}
	}

	j.mu.Lock()
	defer j.mu.Unlock()
	now := time.Now()
	if !slices.ContainsFunc(results, func(r redisexec.Result) bool { return r.Err == nil }) {
		b.rests = now.Add(releaseRetry)
	}
	for i, p := range due {
		if j.pending[p.Token] == p { // not added anew meanwhile
			j.date(p, ids[i], results[i], now)
		}
	}
	j.pending = shrink.Map(j.pending, &j.peak)
}

// date says when a release is tried again, or drops it.
func (j *Janitor) date(p *pendingRelease, id any, r redisexec.Result, now time.Time) {
	switch {
	case r.Err != nil && now.Before(p.giveUp):
		j.wait(p, id, now.Add(releaseRetry))
	case r.Err == nil && r.Value == int64(0) && p.Late && p.pause < p.Life:
		p.pause = max(releaseAgain, 2*p.pause)
		at := now.Add(p.pause)
		p.giveUp = at.Add(max(p.Life, releaseFor))
		j.wait(p, id, at)
	default:
		j.drop(p)
	}
}
