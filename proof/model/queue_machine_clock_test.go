package model_test

import (
	"context"
	"fmt"
	"strconv"
	"testing"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/redis/go-redis/v9"
	"pgregory.net/rapid"

	"github.com/sluice-go/sluice"
	"github.com/sluice-go/sluice/internal/store"
	"github.com/sluice-go/sluice/proof/model"
)

// clock is the server's clock.
type clock interface {
	// begin waits until no score of the model lies just ahead, and returns the time at
	// which an operation begins.
	begin(q *model.Queue) time.Time
	// end returns the time at which it ended.
	end() time.Time
	// spans returns the delays and leases to draw from, offsets the distances of due
	// times from now.
	spans() []time.Duration
	offsets() []time.Duration
	// retentions returns for how long finished tasks are remembered, to draw from. Of a real server
	// they do not end by themselves.
	retentions() []time.Duration
	// limits returns the limits to draw from.
	limits() []sluice.Limits
	// advance lets time pass.
	advance(t *rapid.T, q *model.Queue)
}

type virtualClock struct {
	server *miniredis.Miniredis
	now    time.Time
}

// virtualServer returns a client of a miniredis, and its clock, which the test sets.
func virtualServer(t *testing.T) (*redis.Client, *virtualClock) {
	m := miniredis.RunT(t)
	rdb := redis.NewClient(&redis.Options{Addr: m.Addr()})
	t.Cleanup(func() { _ = rdb.Close() })
	c := &virtualClock{server: m}
	c.set(time.Date(2026, 5, 6, 7, 8, 9, 123457000, time.UTC))
	return rdb, c
}

func (c *virtualClock) begin(*model.Queue) time.Time { return c.now }

func (c *virtualClock) set(now time.Time) {
	if !c.now.IsZero() {
		c.server.FastForward(now.Sub(c.now))
	}
	c.now = now
	c.server.SetTime(now)
}

func (c *virtualClock) end() time.Time { return c.now }

func (*virtualClock) limits() []sluice.Limits {
	return []sluice.Limits{
		{Rate: 1}, {Rate: 2, Burst: 3}, {Rate: 3, Per: time.Second, Burst: 2}, {Rate: 7, Per: time.Millisecond, Burst: 4},
		{Rate: 1000, Per: time.Millisecond}, {Rate: 1000, Per: time.Hour, Burst: 5}, {Rate: 13, Per: 1010 * time.Microsecond},
	}
}

func (*virtualClock) spans() []time.Duration {
	return []time.Duration{0, 1, time.Microsecond, time.Millisecond, 1500 * time.Microsecond, time.Second, time.Hour}
}

func (*virtualClock) offsets() []time.Duration {
	return []time.Duration{-time.Hour, -time.Microsecond, 0, 1, time.Microsecond, time.Millisecond, time.Second, time.Hour}
}

func (*virtualClock) retentions() []time.Duration {
	return []time.Duration{time.Hour, time.Second, time.Millisecond, 1500 * time.Microsecond}
}

// advance sets the clock forward: by a fixed amount, to a score, or next to a score.
func (c *virtualClock) advance(t *rapid.T, q *model.Queue) {
	ahead := []time.Duration{time.Microsecond, time.Millisecond, time.Second, 2 * time.Hour}
	for _, it := range q.Items {
		if at := store.TimeOf(it.Score); at.After(c.now) {
			ahead = append(ahead, at.Sub(c.now)-time.Microsecond, at.Sub(c.now), at.Sub(c.now)+time.Microsecond)
		}
	}
	for _, at := range q.Changes() {
		off := time.Duration(at-float64(c.now.UnixMicro())) * time.Microsecond
		for _, off := range []time.Duration{off - time.Microsecond, off, off + time.Microsecond} {
			if off > 0 {
				ahead = append(ahead, off)
			}
		}
	}
	for _, r := range q.Records {
		for _, retention := range c.retentions() {
			if over := store.TimeOf(r.At).Add(retention); over.After(c.now) {
				ahead = append(ahead, over.Sub(c.now)-time.Microsecond, over.Sub(c.now))
			}
		}
	}
	c.set(c.now.Add(rapid.SampledFrom(ahead).Draw(t, "by")))
}

type realClock struct{ rdb redis.UniversalClient }

// begin waits until the scores that lie just ahead have come.
func (c *realClock) begin(q *model.Queue) time.Time {
	for {
		now, wait := c.end(), false
		soon := func(score float64) bool {
			off := score - seconds(now)
			return off >= 0 && off < 60
		}
		for _, it := range q.Items {
			wait = wait || it.Queued && soon(it.Score) || it.Waiting && soon(it.Due) || soon(it.Lease)
		}
		if !wait {
			return now
		}
		time.Sleep(300 * time.Microsecond) // the server's clock is real time
	}
}

func (c *realClock) end() time.Time {
	now, err := c.rdb.Time(context.Background()).Result()
	if err != nil {
		panic(err)
	}
	return now
}

// limits let no token come back while a test runs.
func (*realClock) limits() []sluice.Limits {
	return []sluice.Limits{{Rate: 1, Per: 24 * time.Hour, Burst: 3}, {Rate: 2, Per: 24 * time.Hour, Burst: 2}, {Rate: 1, Per: 48 * time.Hour, Burst: 5}}
}

func (*realClock) spans() []time.Duration {
	return []time.Duration{0, time.Millisecond, time.Hour, 90 * time.Minute}
}

func (*realClock) offsets() []time.Duration {
	return []time.Duration{-time.Hour, -time.Second - time.Microsecond, -time.Second - 1, -time.Millisecond, 61 * time.Minute, 100 * time.Minute}
}

func (*realClock) retentions() []time.Duration { return []time.Duration{time.Hour, 3 * time.Hour} }

func (*realClock) advance(*rapid.T, *model.Queue) {}

// seconds returns a time as the scripts see it.
func seconds(t time.Time) float64 {
	return float64(t.Unix()) + float64(t.Nanosecond()/1000)/1e6
}

// micros returns a delay in microseconds, rounded up as the library does. One below zero is none.
func micros(d time.Duration) int64 {
	return int64((max(d, 0) + time.Microsecond - 1) / time.Microsecond)
}

// decimal returns microseconds as seconds, rounded as the decimal text that the library sends.
func decimal(us int64) float64 {
	x, err := strconv.ParseFloat(fmt.Sprintf("%d.%06d", us/1e6, us%1e6), 64)
	if err != nil {
		panic(err)
	}
	return x
}
