package model_test

import (
	"context"
	"fmt"
	"math"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/sluice-go/sluice"
)

// pause pauses the queue, for hours or for times that end.
func (m *queueMachine) pause(t *rapid.T) {
	if rapid.Bool().Draw(t, "skip") {
		t.Skip("too much waits for its end")
	}
	now := m.begin()
	d := m.span(t, "pause").Round(time.Millisecond)
	if _, isReal := m.clock.(*realClock); isReal && d < time.Hour {
		d = 0 // it may end before the next operation
	}
	require.NoError(t, m.queues[0].Pause(context.Background(), d))
	m.model.Pause(now, d)
	m.counts.add("pause: " + either(d > 0, "with an end", "without an end"))
	m.end(t)
}

func (m *queueMachine) resume(t *rapid.T) {
	m.begin()
	require.NoError(t, m.queues[0].Resume(context.Background()))
	m.model.Resume()
	m.counts.add("resume")
	m.end(t)
}

// setLimits gives the queue limits, which change others, or takes them away.
func (m *queueMachine) setLimits(t *rapid.T) {
	now, l := m.begin(), sluice.Limits{}
	if rapid.Bool().Draw(t, "limited") {
		l = rapid.SampledFrom(append(m.clock.limits(), l)).Draw(t, "rate")
		l.Running = rapid.SampledFrom([]int{0, 1, 1, 2, 3}).Draw(t, "running")
	}
	l.PerGroup = m.perGroup(t)
	require.NoError(t, m.queues[0].SetLimits(context.Background(), l))
	m.model.SetLimits(now, l)
	m.handed = nil
	if l.Rate == 0 {
		m.counts.add("limits: " + either(l.Running > 0, "running", "none"))
	} else {
		m.counts.add("limits: " + either(l.Running > 0, "both", "rate"))
	}
	m.end(t)
}

func (m *queueMachine) limits(t *rapid.T) {
	m.begin()
	is, err := m.queues[0].Limits(context.Background())
	require.NoError(t, err)
	require.Equal(t, m.model.Limits, is)
	m.end(t)
}

// handedOut notes that so many tasks of n were handed out. In any time of Per, no more than Rate
// and Burst together are: the model's own count could be wrong as the server's is.
func (m *queueMachine) handedOut(t *rapid.T, n, claimed int) {
	now, l := m.clock.end(), m.model.Limits
	for range claimed {
		m.handed = append(m.handed, now)
	}
	if most := l.Rate + l.Burst; l.Rate > 0 && len(m.handed) > most {
		first := m.handed[len(m.handed)-most-1]
		require.Greater(t, now.Sub(first), l.Per, "more than the rate and the burst")
	}
	leased := len(m.model.Index(seconds(now)))
	full := l.Running > 0 && leased >= l.Running
	require.False(t, claimed > 0 && full && leased > l.Running, "%d are leased", leased)
	due := m.model.Stats(seconds(now)).Due
	switch {
	case claimed == n || due == 0 || m.model.IsPaused(seconds(now)):
	case full:
		m.counts.add("limited by running")
	case l.Rate > 0:
		m.counts.add(either(len(m.handed) == 0, "limited after a change", "limited by rate"))
	}
}

// pauseEnds compares when a pause ends. Stats says it in whole milliseconds.
func (m *queueMachine) pauseEnds(t *rapid.T, paused bool, until time.Time) {
	require.Equal(t, paused && m.model.Until > 0, !until.IsZero())
	if !until.IsZero() {
		require.WithinDuration(t, time.UnixMicro(int64(m.model.Until)), until, 1000*m.clock.end().Sub(m.started)+2*time.Millisecond)
	}
}

// requireLimits compares the pause and the limits that the server holds with the model.
func (m *queueMachine) requireLimits(t *rapid.T, ended time.Time) {
	const never = 9e15
	text, err := m.rdb.Get(context.Background(), "{"+m.key+"}:paused").Result()
	held, until, per, spent, now := sluice.Limits{}, 0.0, 0.0, 0.0, seconds(ended)
	if err == nil {
		rest := []any{&spent}
		if strings.Count(text, " ") == 6 {
			rest = []any{&held.PerGroup, &spent}
		}
		_, err = fmt.Sscan(text, append([]any{&until, &held.Running, &held.Rate, &per, &held.Burst}, rest...)...)
		require.NoError(t, err, text)
		held.Per = time.Duration(per) * time.Microsecond
	} else {
		require.ErrorIs(t, err, redis.Nil)
	}
	if held.Rate == 0 { // what the others say does not matter
		held.Per, held.Burst, spent = 0, 0, m.model.Spent
	}
	require.Equal(t, m.model.Limits, held)
	if m.model.Paused && !m.model.IsPaused(now) {
		m.model.Resume()
		m.counts.add("pause ended")
	}
	require.Equal(t, m.model.Paused, until > now*1e6)
	elapsed := float64(ended.Sub(m.started).Microseconds())
	switch {
	case !m.model.Paused:
	case m.model.Until == 0:
		require.InDelta(t, never, until, 0)
	default:
		require.InDelta(t, m.model.Until, until, 2*elapsed)
		m.model.Until = until
	}
	require.LessOrEqual(t, math.Abs(spent-m.model.Spent), 4*elapsed, "%.2f instead of %.2f", spent, m.model.Spent)
	m.model.Spent = spent
}
