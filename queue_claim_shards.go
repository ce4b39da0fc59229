package sluice

import (
	"cmp"
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/sluice-go/sluice/internal/redisexec"
	"github.com/sluice-go/sluice/internal/watch"
)

// sighting is what this client knows of a shard's head.
type sighting struct {
	at       time.Time // when it was told
	due      time.Time // when the head is, or has been; zero for none within an hour
	isFailed bool      // the last claim or look has failed
}

const (
	// hangsAfter is how long a Claim waits for a shard at least before it turns to others, and lookPatience at most.
	hangsAfter   = 100 * time.Millisecond
	lookPatience = time.Second
	// suspect is what counts as the time that an answer takes of a shard which has not answered: it is not waited for for long
	// again.
	suspect = time.Millisecond
	// shunFor is for how long a shard that has failed is not asked first.
	shunFor = 5 * time.Second
)

// sight notes what a reply has said of the head: in what time it is due.
func (s *shard) sight(off time.Duration) {
	this := sighting{}
	if off < farOff {
		this.due = time.Now().Add(off)
	}
	s.note(this)
}

// fail notes that a shard could not be asked.
func (s *shard) fail() { s.note(sighting{isFailed: true}) }

func (s *shard) note(this sighting) {
	if !s.isAlone {
		this.at = time.Now()
		s.sighted.Store(&this)
	}
}

// oldest returns the shard to be asked first, or nil if nothing seems to be due. That is the one
// whose head has been due for longest; but one of which nothing was heard for a poll interval
// comes before: so no shard is forgotten while another has always something that is due.
func (q *Queue) oldest() *shard {
	var first *shard
	var due time.Time
	now, start := time.Now(), rand.N(len(q.shards))
	for i := range q.shards {
		s := q.shards[(start+i)%len(q.shards)]
		switch seen := s.sighted.Load(); {
		case seen != nil && seen.isFailed && now.Sub(seen.at) < shunFor:
		case seen == nil || now.Sub(seen.at) >= q.options.poll:
			return s
		case !seen.due.IsZero() && !seen.due.After(now) && (first == nil || seen.due.Before(due)):
			first, due = s, seen.due
		}
	}
	return first
}

// inShards has shards hand out up to n tasks, one after the other: first the one whose head is oldest, as far as is
// known, then all others that are due, as one look at them says. take returns how many tasks a shard had; it is
// not called again once there are n, or it says that it is over. A shard that fails keeps no caller from the tasks of the others:
// once there are any, a look that hangs is not waited for for longer than hurry.
func (q *Queue) inShards(ctx context.Context, n int, hurry time.Duration, take func(s *shard, n int) (taken int, over bool, err error)) error {
	taken, over, errs := 0, false, []error(nil)
	ask := func(s *shard) {
		count, isOver, err := take(s, n-taken)
		if err != nil {
			s.fail()
		}
		taken, over, errs = taken+count, isOver, append(errs, err)
	}
	first := q.oldest()
	if first != nil {
		ask(first)
	}
	if taken < n && !over {
		patience := lookPatience
		if taken > 0 {
			patience = hurry
		}
		due, err := q.lookAtOthers(ctx, first, patience, hurry)
		for _, d := range due {
			if taken < n && !over {
				ask(d.shard)
			}
		}
		if taken == 0 {
			errs = append(errs, err)
		}
	}
	return joinErrors(errs)
}

// lookAtOthers looks at all shards but one, with one pipeline for each server, and returns those that are due, the oldest head
// first: what a caller asks is what its own look says, whatever others note meanwhile. It waits for so long and, once something is
// due, for hurry at most.
func (q *Queue) lookAtOthers(ctx context.Context, but *shard, patience, hurry time.Duration) (due []dueShard, err error) {
	others := slices.DeleteFunc(slices.Clone(q.shards), func(s *shard) bool { return s == but })
	bounded, cancel := context.WithCancel(ctx)
	defer cancel()
	byNode := q.executor.ByNode(len(others), func(i int) any { return others[i].keys[0] })
	found := make(chan looked, len(byNode))
	for _, at := range byNode {
		some := make([]*shard, len(at))
		for i, j := range at {
			some[i] = others[j]
		}
		// It ends with the answers, or with bounded; lookAtOthers waits for that as long as it has patience.
		q.executor.Go(func() { found <- q.lookAt(bounded, some) })
	}
	hangs := time.NewTimer(patience)
	defer hangs.Stop()
	for range byNode {
		select {
		case l := <-found:
			due, err = append(due, l.due...), joinErrors([]error{err, l.err})
			if len(due) > 0 {
				hangs.Reset(hurry)
			}
			continue
		case <-hangs.C:
			err = joinErrors([]error{err, fmt.Errorf("%w: a shard has not answered", ErrUnavailable)})
		case <-ctx.Done():
			err = ctx.Err()
		}
		break
	}
	slices.SortFunc(due, func(a, b dueShard) int { return cmp.Compare(a.score, b.score) })
	return due, err
}

// dueShard is a shard that may have tasks that are due.
type dueShard struct {
	shard *shard
	score float64 // of the head, or 0
}

// looked is what a look at some shards has found.
type looked struct {
	due []dueShard
	err error
}

// lookAt looks at shards of one server. What is not answered by the pipeline is asked for again,
// as far as that helps. A caller that has left says nothing about the shards.
func (q *Queue) lookAt(ctx context.Context, shards []*shard) (l looked) {
	requests := make([]redisexec.Request, len(shards))
	for i, s := range shards {
		requests[i] = s.watcher.Look()
	}
	errs := make([]error, len(shards))
	for i, r := range q.executor.Pipeline(ctx, requests) {
		var h watch.Head
		h, errs[i] = q.headOf(ctx, requests[i], r)
		switch {
		case errs[i] != nil && ctx.Err() == nil:
			shards[i].fail()
		case errs[i] == nil:
			shards[i].sight(h.Off)
			if h.Off == 0 {
				score, _, _ := strings.Cut(h.ID, " ")
				at, _ := strconv.ParseFloat(score, 64)
				l.due = append(l.due, dueShard{shards[i], at})
			}
		}
	}
	l.err = joinErrors(errs)
	return l
}

// headOf returns the head in the reply to a look, which is made again if that may help.
func (q *Queue) headOf(ctx context.Context, r redisexec.Request, first redisexec.Result) (watch.Head, error) {
	reply := redisexec.Reply{Value: first.Value}
	if first.Outcome != redisexec.Done {
		var err error
		if reply, err = q.executor.Resume(ctx, r, first); err != nil {
			return watch.Head{}, err
		}
	}
	heads, err := lookScripts{}.Heads(reply.Value, 1)
	return heads[0], err
}

// claimShards is Claim on several shards. What a shard has leased that does not answer in time is given back, once it does.
func (q *Queue) claimShards(ctx context.Context, n int, lease time.Duration) ([]Entry, error) {
	c := shardsClaim{claiming: claiming{lease: lease, began: time.Now()}, answers: make(chan shardAnswer, len(q.shards))}
	err := q.inShards(ctx, n, hangsAfter, func(s *shard, n int) (int, bool, error) {
		before, more, err := c.count, true, error(nil)
		for more && err == nil && c.count < before+n && ctx.Err() == nil && c.mayGoOn(before+n) {
			more, err = c.ask(ctx, s, min(before+n-c.count, maxGroup))
		}
		return c.count - before, ctx.Err() != nil || !c.mayGoOn(before+n), err
	})
	if c.count == 0 {
		_, late := c.await(ctx, nil, lookPatience)
		err = joinErrors([]error{err, late})
	}
	if c.asking > 0 {
		err = joinErrors([]error{err, fmt.Errorf("%w: a shard has not answered", ErrUnknown), ctx.Err()})
		// It ends with the last answer and what that brings; nothing waits for it.
		q.executor.Go(func() { c.leave(q.giveBack) })
	}
	valid := c.keepValid(ctx, q.giveBack)
	switch {
	case len(valid) > n:
		q.giveBack(ctx, valid[n:])
		return valid[:n:n], nil
	case len(valid) > 0:
		return valid, nil
	case err == nil && c.count > 0:
		err = errLateClaim
	}
	return nil, err
}

// shardsClaim is a claimShards under way.
type shardsClaim struct {
	claiming
	answers chan shardAnswer // with room for one of each shard
	asking  int              // how many are to come
}

// shardAnswer is what a shard has answered to a claim.
type shardAnswer struct {
	shard       *shard
	asked, sent time.Time
	more        bool
	entries     []Entry
	err         error
}

// ask has a shard claim up to n tasks, and reports whether there may be more. Its goroutine ends after giveBackFor at most;
// ask waits for it, and then leave does.
func (c *shardsClaim) ask(ctx context.Context, s *shard, n int) (more bool, err error) {
	detached, cancel := context.WithTimeout(context.WithoutCancel(ctx), giveBackFor) // its caller may leave
	c.asking++
	s.executor.Go(func() {
		defer cancel()
		a := shardAnswer{shard: s, asked: time.Now()}
		a.more, a.sent, a.entries, a.err = s.claimStep(detached, n, c.lease)
		s.took.Store(int64(time.Since(a.asked)))
		c.answers <- a
	})
	return c.await(ctx, s, s.patience())
}

// await takes answers until that of a shard has come, or any with tasks for nil, but not for longer than that.
func (c *shardsClaim) await(ctx context.Context, s *shard, longest time.Duration) (more bool, err error) {
	timer := time.NewTimer(longest)
	defer timer.Stop()
	ended := ctx.Done()
	for c.asking > 0 && (s != nil || c.count == 0) {
		select {
		case a := <-c.answers:
			c.asking--
			if a.err == nil {
				c.add(a.asked, a.sent, a.entries)
			}
			if a.shard == s {
				return a.more, a.err
			}
			err = joinErrors([]error{err, a.err})
		case <-timer.C:
			if s != nil {
				s.fail()
				s.took.Store(int64(suspect)) // until it answers
			}
			return false, err
		case <-ended:
			ended = nil
			timer.Reset(redisexec.ReplyGrace)
		}
	}
	return false, err
}

// leave gives back what the answers bring that are still to come.
func (c *shardsClaim) leave(giveBack func(ctx context.Context, es []Entry) <-chan struct{}) {
	for range c.asking {
		if a := <-c.answers; len(a.entries) > 0 {
			<-giveBack(context.Background(), a.entries)
		}
	}
}

// patience is how long a claim waits for the shard: for a while, or several times as long as the last answer took.
func (s *shard) patience() time.Duration {
	took := time.Duration(s.took.Load())
	if took == 0 {
		return lookPatience
	}
	return min(max(hangsAfter, 4*took), lookPatience)
}

// popShards is Pop on several shards.
func (q *Queue) popShards(ctx context.Context, n int) (popped []Entry, err error) {
	err = q.inShards(ctx, n, lookPatience, func(s *shard, n int) (int, bool, error) {
		entries, err := s.pop(ctx, n)
		popped = append(popped, entries...)
		if err == nil && len(entries) < n {
			s.sight(farOff)
		}
		return len(entries), ctx.Err() != nil, err
	})
	return popped, err
}
