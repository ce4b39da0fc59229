package model_test

import (
	"context"
	"math"
	"strconv"
	"time"

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

// handedOut notes that so many tasks of n were handed out. In any time of Per, no more than Rate and Burst together are: the
// model's own count could be wrong as the server's is.
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

// pauseEnds compares when a pause ends. Its end is kept in milliseconds, which are rounded up whenever limits change.
func (m *queueMachine) pauseEnds(t *rapid.T, paused bool, until time.Time) {
	require.Equal(t, paused && m.model.Until > 0, !until.IsZero())
	if !until.IsZero() {
		require.WithinDuration(t, time.UnixMicro(int64(m.model.Until)), until, 1000*m.clock.end().Sub(m.started)+2*time.Millisecond)
	}
}

// requireLimits compares the pause and the limits that the server holds with the model.
func (m *queueMachine) requireLimits(t *rapid.T, ended time.Time) {
	key, now := "{"+m.key+"}:paused", seconds(ended)
	fields, err := m.rdb.HGetAll(context.Background(), key).Result()
	paused, until, spent := false, 0.0, 0.0
	if err != nil { // a string
		require.ErrorContains(t, err, "WRONGTYPE")
		require.Zero(t, m.model.Limits)
		paused = true
		if left := m.clock.left(key); left > 0 {
			ended = m.clock.end()
			until = float64(ended.Add(left).UnixMicro())
		}
	} else {
		number := func(name string) float64 { x, _ := strconv.ParseFloat(fields[name], 64); return x }
		until, spent = number("until"), number("spent")
		paused = fields["until"] != "" && (until == 0 || until > now*1e6)
		held := sluice.Limits{Running: int(number("running")), Rate: int(number("rate")), Burst: int(number("burst")), Per: time.Duration(number("per")) * time.Microsecond}
		require.Equal(t, m.model.Limits, held)
	}
	if m.model.Paused && !m.model.IsPaused(now) {
		m.model.Resume()
		m.counts.add("pause ended")
	}
	require.Equal(t, m.model.Paused, paused)
	elapsed := float64(ended.Sub(m.started).Microseconds())
	if paused {
		require.Equal(t, m.model.Until > 0, until > 0)
		late := until - m.model.Until
		if elapsed > 0 { // a real server, whose pauses take hours
			late /= 1000
		} else {
			m.model.Until = until
		}
		require.True(t, late > -1000 && late <= 2000, "a pause ends later by %.0f microseconds", late)
	}
	require.LessOrEqual(t, math.Abs(spent-m.model.Spent), 4*elapsed, "%.2f instead of %.2f", spent, m.model.Spent)
	m.model.Spent = spent
}
