package main

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"
)

// quiet ends the faults, and waits until all is done. What does not come to an end is
// a violation.
func (r *round) quiet() (wrong []string, err error) {
	if err := r.server.calm(context.Background()); err != nil {
		return nil, err
	}
	for _, p := range r.proxies {
		p.calm()
	}
	if r.server.offset < r.highest { // else what was leased then waits for hours
		if err := r.server.setClock(r.highest); err != nil {
			return nil, err
		}
	}
	if wrong = r.tellAll("quiet", "quiet", 3*patience); wrong != nil {
		return wrong, nil
	}
	if left := r.drain(); left != "" {
		wrong = append(wrong, "not drained: "+left)
	}
	if wrong = append(wrong, r.tellAll("end", "ended", 3*patience)...); wrong != nil {
		return wrong, nil
	}
	for _, p := range r.running {
		if <-p.ended; p.err != nil {
			wrong = append(wrong, fmt.Sprintf("%s: %v (see its .err file)", p.Process, p.err))
		}
	}
	return append(wrong, r.leftKeys()...), nil
}

// tellAll says a word to every client, and waits for their answers.
func (r *round) tellAll(word, answer string, patience time.Duration) (wrong []string) {
	answers := make(chan error)
	for _, p := range r.running {
		go func() { answers <- p.tell(word, answer, patience) }()
	}
	for range r.running {
		if err := <-answers; err != nil {
			wrong = append(wrong, err.Error())
		}
	}
	return wrong
}

// drain waits until the queues are empty, and says what is left.
func (r *round) drain() (left string) {
	for end := time.Now().Add(2 * patience); time.Now().Before(end); {
		left = ""
		for _, name := range queues {
			if n, err := r.server.rdb.ZCard(context.Background(), "Queue:"+name).Result(); err != nil || n > 0 {
				left += fmt.Sprintf("%s (%d, %v) ", name, n, err)
			}
		}
		if left == "" {
			return ""
		}
		time.Sleep(50 * time.Millisecond) // they work
	}
	return left
}

// leftKeys are keys that are there at the end and should not be.
func (r *round) leftKeys() (wrong []string) {
	ctx := context.Background()
	time.Sleep(time.Second) // the longest TTL
	for _, key := range r.server.rdb.Keys(ctx, "*").Val() {
		if strings.HasPrefix(key, "Lock:") && r.server.rdb.Exists(ctx, key).Val() == 1 {
			wrong = append(wrong, fmt.Sprintf("%s is held when all is quiet, for %v", key, r.server.rdb.PTTL(ctx, key).Val()))
		}
	}
	for _, name := range queues {
		dead := r.server.rdb.ZRange(ctx, "{Queue:"+name+"}:dead", 0, -1).Val()
		kept := r.server.rdb.HKeys(ctx, "{Queue:"+name+"}:tasks").Val()
		slices.Sort(dead)
		slices.Sort(kept)
		if !slices.Equal(dead, kept) {
			wrong = append(wrong, fmt.Sprintf("%s: %d dead letters, and %d fields", name, len(dead), len(kept)))
		}
	}
	return wrong
}
