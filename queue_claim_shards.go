package sluice

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/sluice-go/sluice/internal/redisexec"
	"github.com/sluice-go/sluice/internal/watch"
	"github.com/sluice-go/sluice/internal/wire"
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
	due := time.Time{}
	if off < farOff {
		due = time.Now().Add(off)
	}
	s.note(sighting{due: due})
}

// fail notes that a shard could not be asked.
func (s *shard) fail() { s.note(sighting{isFailed: true}) }

func (s *shard) note(this sighting) {
	if !s.isAlone {
		this.at = time.Now()
		s.sighted.Store(&this)
	}
}

// oldest returns the shard to be asked first of those that were not asked, or nil if nothing seems to be due. That is the one
// whose head has been due for longest; but one of which nothing was heard for a poll interval
// comes before: so no shard is forgotten while another has always something that is due. After a look, which began then, only
// those count of which something was heard since.
func (q *Queue) oldest(asked map[*shard]bool, looked time.Time) *shard {
	var first *shard
	var due time.Time
	now, start := time.Now(), rand.N(len(q.shards))
	for i := range q.shards {
		s := q.shards[(start+i)%len(q.shards)]
		switch seen := s.sighted.Load(); {
		case asked[s], seen != nil && seen.isFailed && now.Sub(seen.at) < shunFor:
		case !looked.IsZero() && (seen == nil || seen.at.Before(looked)):
		case seen == nil || now.Sub(seen.at) >= q.options.poll:
			return s
		case !seen.due.IsZero() && !seen.due.After(now) && (first == nil || seen.due.Before(due)):
			first, due = s, seen.due
		}
	}
	return first
}

// inShards has shards hand out up to n tasks, one after the other: the one whose head is oldest, as far as is
// known, then the others in the same order, which one look at them tells. take returns how many tasks a shard had; it is
// not called again once there are n, or it says that it is over. A shard that fails keeps no caller from the tasks of the others:
// once there are any, a look that hangs is not waited for for longer than hurry.
func (q *Queue) inShards(ctx context.Context, n int, hurry time.Duration, take func(s *shard, n int) (taken int, over bool, err error)) error {
	taken, over, errs, asked := 0, false, []error(nil), map[*shard]bool{}
	var looked time.Time
	askOldest := func() bool {
		s := q.oldest(asked, looked)
		if s == nil || over || taken >= n {
			return false
		}
		asked[s] = true
		count, isOver, err := take(s, n-taken)
		if err != nil {
			s.fail()
		}
		taken, over, errs = taken+count, isOver, append(errs, err)
		return true
	}
	askOldest()
	if taken < n && !over {
		patience := lookPatience
		if taken > 0 {
			patience = hurry
		}
		looked = time.Now()
		if err := q.lookAtOthers(ctx, asked, patience, hurry); taken == 0 {
			errs = append(errs, err)
		}
		for askOldest() {
		}
	}
	return joinErrors(errs)
}

// lookAtOthers looks at all shards that were not asked, with one pipeline for each server. It waits for so long and, once
// something is due, for hurry at most. One that says nothing for lookPatience has failed.
func (q *Queue) lookAtOthers(ctx context.Context, asked map[*shard]bool, patience, hurry time.Duration) (err error) {
	others := slices.DeleteFunc(slices.Clone(q.shards), func(s *shard) bool { return asked[s] })
	bounded, cancel := context.WithTimeout(ctx, redisexec.MaxQuiet)
	defer cancel()
	byNode := q.executor.ByNode(len(others), func(i int) any { return others[i].keys[0] })
	found, began := make(chan seenAt, len(byNode)), time.Now()
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
			if err = joinErrors([]error{err, l.err}); l.due {
				hangs.Reset(hurry)
			}
		case <-hangs.C:
			for _, s := range others {
				if seen := s.sighted.Load(); time.Since(began) >= lookPatience && (seen == nil || seen.at.Before(began)) {
					s.fail()
				}
			}
			return joinErrors([]error{err, fmt.Errorf("%w: a shard has not answered", ErrUnavailable)})
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	return err
}

// seenAt says whether some shards have a task that is due, and what went wrong with others.
type seenAt struct {
	due bool
	err error
}

// lookAt looks at shards of one server. What is not answered by the pipeline is asked for again,
// as far as that helps.
func (q *Queue) lookAt(ctx context.Context, shards []*shard) (l seenAt) {
	requests := make([]redisexec.Request, len(shards))
	for i, s := range shards {
		requests[i] = s.watcher.Look()
	}
	errs := make([]error, len(shards))
	for i, r := range q.executor.Pipeline(ctx, requests) {
		var h watch.Head
		h, errs[i] = q.headOf(ctx, requests[i], r)
		switch {
		case ctx.Err() != nil: // it has been left
		case errs[i] != nil:
			shards[i].fail()
		case h.Off > 0:
			shards[i].sight(h.Off)
		default:
			l.due = true
			shards[i].note(sighting{due: dueSince(h)})
		}
	}
	l.err = joinErrors(errs)
	return l
}

// dueSince returns since when a head has been due, by the server's clock, which may be ahead.
func dueSince(h watch.Head) time.Time {
	text, _, _ := strings.Cut(h.ID, " ")
	score, _ := strconv.ParseFloat(text, 64)
	due, now := wire.TimeOf(score), time.Now()
	if due.After(now) {
		return now
	}
	return due
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
		var read int
		read, a.sent, a.entries, a.err = s.claimStep(detached, n, c.lease)
		a.more = read > 0
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
