package sluice

import (
	"context"
	"fmt"
	"time"

	"github.com/sluice-go/sluice/internal/redisexec"
)

// Claim leases up to n due tasks, earliest first: they are the caller's until the lease
// ends. The caller then says what becomes of each with Dequeue, Retry, Release or Bury. A
// task of which it says nothing is due again when its lease ends. To find nothing due is
// no error.
//
// Tasks that were claimed as often as WithMaxAttempts allows go to the dead letters
// instead, as do entries that are not the library's; fewer than n may be returned then.
// More than 250 tasks, or a megabyte of payload, are claimed in several steps; if one
// fails, the tasks claimed before are returned beside the error. After ErrUnknown tasks
// may be leased to no caller: they are due again when the lease ends.
func (q *Queue) Claim(ctx context.Context, n int, lease time.Duration) ([]Entry, error) {
	if err := checkDuration("lease", lease); err != nil {
		return nil, fmt.Errorf("sluice: claim: %w", err)
	}
	return collect(ctx, q, "claim", n, func(n, _ int) (redisexec.Request, decoder[Entry]) {
		return q.claimRequest(n, lease), decodeClaimedAs[Entry]
	})
}

func (q *Queue) claimRequest(n int, lease time.Duration) redisexec.Request {
	return scriptClaim.Request(q.keys, n, micros(ceilMicros(lease)), q.options.maxAttempts)
}

// Pop takes up to n due tasks out of the queue, earliest first. A task is handed to one
// caller at most, and lost if that caller dies: use Claim where that matters. For more
// than 250 see Claim. After ErrUnknown up to n tasks may be lost.
func (q *Queue) Pop(ctx context.Context, n int) ([]Entry, error) {
	return collect(ctx, q, "pop", n, func(n, _ int) (redisexec.Request, decoder[Entry]) {
		return scriptPop.Request(q.keys, n), decodeEntries
	})
}

// Peek reads up to n due tasks, earliest first. It changes nothing, and nothing keeps
// other callers from taking them: Dequeue reports whether one did. It reads on past what
// Claim and Pop would set aside, so a queue that is only ever peeked at needs a Claim now
// and then.
func (q *Queue) Peek(ctx context.Context, n int) ([]Entry, error) {
	return collect(ctx, q, "peek", n, func(n, skip int) (redisexec.Request, decoder[Entry]) {
		return scriptPeek.Request(q.keys[:2], n, skip), decodeEntries
	})
}

// collect runs a script that hands out entries until there are n, or no more. request is
// given how many are still wanted, and how many the script has read before.
func collect[E any](ctx context.Context, q *Queue, op string, n int,
	request func(n, skip int) (redisexec.Request, decoder[E]),
) ([]E, error) {
	if err := q.check(op, ctx); err != nil {
		return nil, err
	}
	if n < 1 {
		return nil, invalid(op, "n must be at least 1")
	}
	var collected []E
	for skip := 0; len(collected) < n; {
		r, decode := request(min(n-len(collected), maxGroup), skip)
		reply, err := q.executor.Run(ctx, r)
		if err != nil {
			return collected, wrap(op, q.name, err)
		}
		read, entries, err := decode(reply.Value)
		collected = append(collected, entries...)
		if err != nil {
			return collected, wrap(op, q.name, err)
		}
		if read == 0 {
			break
		}
		skip += read
	}
	return collected, nil
}
