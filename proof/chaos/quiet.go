package main

import (
	"cmp"
	"context"
	"fmt"
	"math"
	"slices"
	"strings"
	"time"
)

// quiet ends the faults, and waits until all tasks are done. What does not end is a
// violation.
func (r *round) quiet() (violations []string, err error) {
	if err := r.server.clear(context.Background()); err != nil {
		return nil, err
	}
	r.server.replica.link.clear()
	for _, p := range r.proxies {
		if !r.liveness { // those faults do not end
			p.clear()
		}
	}
	if r.server.offset < r.highest { // otherwise tasks leased at that time would wait for hours
		if err := r.server.setClock(r.highest); err != nil {
			return nil, err
		}
	}
	if violations = r.sendAll("quiet", "quiet", 3*calmLimit); violations != nil {
		return violations, nil
	}
	if err := r.clearLimits(); err != nil {
		return nil, err
	}
	if left := r.drain(); left != "" {
		violations = append(violations, "not drained: "+left)
	}
	violations = append(violations, r.awaitTicks()...)
	if violations = append(violations, r.sendAll("end", "ended", 3*calmLimit)...); violations != nil {
		return violations, nil
	}
	for _, p := range r.running {
		if <-p.ended; p.err != nil {
			violations = append(violations, fmt.Sprintf("%s: %v (see its .err file)", p.Process, p.err))
		}
	}
	if err := r.readDone(); err != nil {
		violations = append(violations, err.Error())
	}
	if err := r.readStocks(); err != nil {
		violations = append(violations, err.Error())
	}
	return append(violations, r.leftKeys()...), nil
}

// sendAll sends a word to every client, and waits for their answers.
func (r *round) sendAll(word, answer string, limit time.Duration) (violations []string) {
	answers := make(chan error)
	for _, p := range r.running {
		go func() { answers <- p.send(word, answer, limit) }()
	}
	for range r.running {
		if err := <-answers; err != nil {
			violations = append(violations, err.Error())
		}
	}
	return violations
}

// drain waits until the queues are empty, and returns what is left when they have not become shorter
// for a while: the tasks of a group end one after the other, which takes a busy machine its time.
func (r *round) drain() (left string) {
	ctx := context.Background()
	begin, least := time.Now(), int64(math.MaxInt64)
	sweepAt := begin.Add(sweepAfter)
	for end := begin.Add(2 * calmLimit); time.Now().Before(end); {
		left = ""
		var sum int64
		for _, name := range drained {
			n, err := r.server.rdb.ZCard(ctx, "Queue:"+name).Result()
			waiting, waitErr := r.server.rdb.ZLexCount(ctx, groupsOf(name), "[~", "+").Result()
			if err = cmp.Or(err, waitErr); err != nil || n+waiting > 0 {
				left += fmt.Sprintf("%s (%d, %d wait in groups, %v) ", name, n, waiting, err)
			}
			sum += n + waiting
		}
		if left == "" {
			return ""
		}
		if sum < least {
			least, end = sum, time.Now().Add(2*calmLimit)
		}
		if time.Now().After(sweepAt) {
			sweepAt = time.Now().Add(sweepAfter)
			if err := r.sweepGroups(); err != nil {
				return left + err.Error()
			}
		}
		time.Sleep(50 * time.Millisecond) // the clients still work
	}
	return left
}

// leftKeys finds keys that should not be there at the end.
func (r *round) leftKeys() (violations []string) {
	ctx := context.Background()
	time.Sleep(time.Second) // the longest TTL
	for _, key := range r.server.rdb.Keys(ctx, "*").Val() {
		if strings.HasPrefix(key, "Lock:") && r.server.rdb.Exists(ctx, key).Val() == 1 {
			violations = append(violations, fmt.Sprintf("%s is held when everything is quiet, for %v", key, r.server.rdb.PTTL(ctx, key).Val()))
		}
	}
	violations = append(violations, r.lastingLines(ctx)...)
	for _, name := range drained {
		key := func(which string) string { return "{Queue:" + name + "}:" + which }
		members := func(which string) []string {
			return slices.Sorted(slices.Values(r.server.rdb.ZRange(ctx, key(which), 0, -1).Val()))
		}
		fields := func(which string) []string {
			return slices.Sorted(slices.Values(r.server.rdb.HKeys(ctx, key(which)).Val()))
		}
		dead, states, payloads := members("dead"), fields("state"), fields("tasks")
		if !slices.Equal(dead, states) || name != plainQueue && !slices.Equal(dead, payloads) || name == plainQueue && len(payloads) > 0 {
			violations = append(violations, fmt.Sprintf("%s: %d dead letters, %d states and %d payloads", name, len(dead), len(states), len(payloads)))
		}
		finished, results := members("done"), fields("results")
		isKnown := func(id string) bool { _, found := slices.BinarySearch(finished, id); return found }
		if name != onceQueue && len(finished) > 0 || slices.ContainsFunc(results, func(id string) bool { return !isKnown(id) }) {
			violations = append(violations, fmt.Sprintf("%s: %d tasks are done, and %d have a result", name, len(finished), len(results)))
		}
		if left := members("groups"); len(left) > 0 {
			violations = append(violations, fmt.Sprintf("%s: %q in groups", name, left))
		}
		if left := fields("errors"); len(left) > 0 {
			violations = append(violations, fmt.Sprintf("%s: the last errors of %v, which have ended", name, left))
		}
	}
	return violations
}

// lastingLines finds the lines that do not end by themselves. See checkLines for whom they have.
func (r *round) lastingLines(ctx context.Context) (violations []string) {
	for _, key := range slices.Concat(r.server.rdb.Keys(ctx, "{Lock:*}:line").Val(), r.server.rdb.Keys(ctx, "{Queue:*}:line").Val()) {
		left, err := r.server.rdb.PTTL(ctx, key).Result()
		if err != nil || left == -1 || left > lineLife { // -2 if it has just ended
			violations = append(violations, fmt.Sprintf("%s ends in %v when everything is quiet, %v", key, left, err))
		}
	}
	return violations
}
