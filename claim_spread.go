package sluice

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/sluice-go/sluice/internal/redisexec"
)

// sighting is what this client knows of a shard's head.
type sighting struct {
	at       time.Time // when it was told
	due      time.Time // when the head is, or has been; zero for none within an hour
	isFailed bool      // the last claim or look has failed
}

const (
	// hangsAfter is how long a Claim waits for a shard at least before it turns to others, or returns
	// with what others have answered meanwhile; silentFor is for how long all may be silent.
	hangsAfter = 100 * time.Millisecond
	silentFor  = time.Second
	// shunFor is for how long a shard that has failed is not asked first.
	shunFor = time.Second
)

// sight notes what a reply has said of the head: in what time it is due.
func (s *shard) sight(off time.Duration) {
	if s.isAlone {
		return
	}
	now := time.Now()
	this := &sighting{at: now}
	if off < farOff {
		this.due = now.Add(off)
	}
	s.sighted.Store(this)
}

// oldest returns the shard to be asked first, or nil if nothing seems to be due. That is the one
// whose head has been due for longest; but one of which nothing was heard for a poll interval
// comes before: so no shard is forgotten while another has always something that is due.
func (l *layout) oldest(poll time.Duration) *shard {
	var first *shard
	var due time.Time
	now, start := time.Now(), rand.N(len(l.shards))
	for i := range l.shards {
		s := l.shards[(start+i)%len(l.shards)]
		switch seen := s.sighted.Load(); {
		case seen != nil && seen.isFailed && now.Sub(seen.at) < shunFor:
		case seen == nil || now.Sub(seen.at) >= poll:
			return s
		case !seen.due.IsZero() && !seen.due.After(now) && (first == nil || seen.due.Before(due)):
			first, due = s, seen.due
		}
	}
	return first
}

// dueShard is a shard that may have tasks that are due.
type dueShard struct {
	shard *shard
	score float64 // of the head, or 0
}

// looks looks at the heads of shards, with one pipeline for each server. What a server answers
// is sent to found, one answer for each; it has room for them. It returns how many come.
func (q *Queue) looks(ctx context.Context, shards []*shard, found chan<- looked) int {
	byNode := map[any][]*shard{}
	for _, s := range shards {
		node := q.executor.NodeOf(s.keys[0])
		byNode[node] = append(byNode[node], s)
	}
	for _, some := range byNode {
		q.executor.Go(func() { found <- q.lookAt(ctx, some) })
	}
	return len(byNode)
}

// looked is what a look at some shards has found.
type looked struct {
	due []dueShard
	err error
}

// lookAt looks at shards of one server. What is not answered by the pipeline is asked for again,
// as far as that helps.
func (q *Queue) lookAt(ctx context.Context, shards []*shard) (l looked) {
	requests := make([]redisexec.Request, len(shards))
	for i, s := range shards {
		requests[i] = s.nextRequest()
	}
	errs := make([]error, len(shards))
	for i, r := range q.executor.Pipeline(ctx, requests) {
		var h head
		if h, errs[i] = q.headOf(ctx, requests[i], r); errs[i] != nil {
			shards[i].fail()
			continue
		}
		shards[i].sight(h.off)
		if h.off == 0 {
			score, _, _ := strings.Cut(h.id, " ")
			at, _ := strconv.ParseFloat(score, 64)
			l.due = append(l.due, dueShard{shards[i], at})
		}
	}
	l.err = joinErrors(errs)
	return l
}

// headOf returns the head in the reply to a look, which is made again if that may help.
func (q *Queue) headOf(ctx context.Context, r redisexec.Request, first redisexec.Result) (head, error) {
	reply := redisexec.Reply{Value: first.Value}
	if first.Outcome != redisexec.Done {
		var err error
		if reply, err = q.executor.Resume(ctx, r, first); err != nil {
			return head{}, err
		}
	}
	heads, err := decodeNext(reply.Value, 1)
	if err != nil {
		return head{}, err
	}
	return heads[0], nil
}

// fail notes that a shard could not be asked.
func (s *shard) fail() { s.sighted.Store(&sighting{at: time.Now(), isFailed: true}) }

// claimSpread is Claim on several shards. It asks the one whose head is oldest, and if that has
// too few, all others that are due as far as one look at them says. If a shard does not answer for
// a while, it goes on with others; what that shard has leased is given back.
func (q *Queue) claimSpread(ctx context.Context, l *layout, n int, lease time.Duration) ([]Entry, error) {
	detached, cancel := context.WithCancel(context.WithoutCancel(ctx))
	c := &spreadClaim{
		queue: q, layout: l, ctx: detached, wanted: n, claiming: claiming{lease: lease, began: time.Now()},
		answers: make(chan shardAnswer), found: make(chan looked, len(l.shards)),
	}
	if first := l.oldest(q.options.poll); first != nil {
		c.first = first
		c.ask(first, min(n, maxGroup))
	}
	err := c.run(ctx)
	c.leave(cancel)
	valid := c.keepValid(ctx, q.giveBack)
	switch {
	case len(valid) > n:
		q.giveBack(ctx, valid[n:])
		return valid[:n:n], nil
	case len(valid) > 0 && !errors.Is(err, redisexec.ErrWrongType):
		return valid, nil
	case len(valid) == 0 && err == nil && c.count > 0:
		err = errLateClaim
	}
	return valid, err
}

// spreadClaim is a claimSpread under way. What it sends has a context of its own: its caller may
// leave what hangs behind, and what that brings is given back.
type spreadClaim struct {
	claiming
	queue  *Queue
	layout *layout
	ctx    context.Context
	wanted int

	first     *shard // that was asked before the others were looked at
	answers   chan shardAnswer
	asking    int // claims under way
	found     chan looked
	looking   int // looks under way
	hasLooked bool
	due       []dueShard
	failed    []error
}

// shardAnswer is what a shard has answered to a claim.
type shardAnswer struct {
	shard       *shard
	asked, sent time.Time
	more        bool
	entries     []Entry
	err         error
}

// ask has a shard claim up to n tasks.
func (c *spreadClaim) ask(s *shard, n int) {
	c.asking++
	c.queue.executor.Go(func() {
		a := shardAnswer{shard: s, asked: time.Now()}
		var read int
		read, a.sent, a.entries, a.err = s.claimStep(c.ctx, n, c.lease)
		a.more = read > 0
		if a.err != nil {
			s.fail()
		}
		c.answers <- a // run takes it, or what leave starts
	})
}

// run asks until there are enough tasks, or nothing is left to ask.
func (c *spreadClaim) run(ctx context.Context) error {
	timer := time.NewTimer(hangsAfter)
	defer timer.Stop()
	var asked time.Time // when the last round of questions was sent
	for hangs, answered := false, false; ; {
		if c.asksMore(hangs) {
			hangs, answered, asked = false, false, time.Now()
			timer.Reset(max(hangsAfter, 4*c.slowest))
		}
		switch {
		case !c.mayGoOn(c.wanted), hangs && c.count > 0 && (answered || time.Since(asked) >= silentFor):
			return nil
		case c.asking == 0 && c.looking == 0:
			return joinErrors(c.failed)
		}
		select {
		case a := <-c.answers:
			c.take(a)
			answered = true
		case l := <-c.found:
			answered = true
			c.looking--
			c.due = append(c.due, l.due...)
			c.failed = append(c.failed, l.err)
		case <-timer.C:
			hangs = true
			timer.Reset(hangsAfter)
		case <-ctx.Done():
			return c.stop(ctx)
		}
	}
}

// take takes the answer to a claim.
func (c *spreadClaim) take(a shardAnswer) {
	c.asking--
	c.failed = append(c.failed, a.err)
	if a.err == nil {
		c.add(a.asked, a.sent, a.entries)
	}
	if a.more {
		c.due = append(c.due, dueShard{shard: a.shard})
	}
}

// stop waits a moment for what is under way, after the end of ctx.
func (c *spreadClaim) stop(ctx context.Context) error {
	timer := time.NewTimer(redisexec.ReplyGrace)
	defer timer.Stop()
	for c.asking > 0 {
		select {
		case a := <-c.answers:
			c.take(a)
		case <-timer.C:
			return fmt.Errorf("%w: %w", ErrUnknown, ctx.Err())
		}
	}
	return ctx.Err()
}

// asksMore sends what is to be sent next, and reports whether there was anything: nothing while
// an answer is under way that does not hang.
func (c *spreadClaim) asksMore(hangs bool) bool {
	left := c.wanted - c.count
	switch {
	case left <= 0 || !c.mayGoOn(c.wanted) || (c.asking > 0 || c.looking > 0) && !hangs:
		return false
	case len(c.due) == 0 && !c.hasLooked:
		c.hasLooked = true
		others := slices.DeleteFunc(slices.Clone(c.layout.shards), func(s *shard) bool { return s == c.first })
		c.looking = c.queue.looks(c.ctx, others, c.found)
		return true
	case len(c.due) == 0:
		return false
	}
	slices.SortFunc(c.due, func(a, b dueShard) int { return cmp.Compare(a.score, b.score) })
	asked := min(len(c.due), left)
	for i, d := range c.due[:asked] {
		share := left / asked
		if i < left%asked {
			share++
		}
		c.ask(d.shard, min(share, maxGroup))
	}
	c.due = slices.Delete(c.due, 0, asked)
	return true
}

// leave ends what is under way, and has the tasks given back that it brings.
func (c *spreadClaim) leave(cancel context.CancelFunc) {
	if c.asking == 0 {
		cancel()
		return
	}
	late := time.AfterFunc(giveBackFor, cancel)
	c.queue.executor.Go(func() {
		defer cancel()
		defer late.Stop()
		for range c.asking {
			if a := <-c.answers; len(a.entries) > 0 {
				<-c.queue.giveBack(c.ctx, a.entries)
			}
		}
	})
}

// popSpread is Pop on several shards: one after the other, since what a shard has taken out and
// no caller gets is lost.
func (q *Queue) popSpread(ctx context.Context, l *layout, n int) ([]Entry, error) {
	var popped []Entry
	var errs []error
	pop := func(s *shard) error {
		entries, err := s.pop(ctx, n-len(popped))
		popped = append(popped, entries...)
		if err != nil {
			s.fail()
		} else if len(popped) < n {
			s.sight(farOff)
		}
		return err
	}
	first := l.oldest(q.options.poll)
	if first != nil {
		errs = append(errs, pop(first))
	}
	if len(popped) < n {
		others := slices.DeleteFunc(slices.Clone(l.shards), func(s *shard) bool { return s == first })
		found := make(chan looked, len(l.shards))
		var due []dueShard
		for range q.looks(ctx, others, found) {
			l := <-found
			due, errs = append(due, l.due...), append(errs, l.err)
		}
		slices.SortFunc(due, func(a, b dueShard) int { return cmp.Compare(a.score, b.score) })
		for _, d := range due {
			if len(popped) < n {
				errs = append(errs, pop(d.shard))
			}
		}
	}
	return popped, joinErrors(errs)
}
