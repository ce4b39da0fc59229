package virtualtime

import (
	"context"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/sluice-go/sluice"
	"github.com/sluice-go/sluice/internal/redistest"
	"github.com/sluice-go/sluice/internal/systest"
)

// network is a bubble with a second client, on connections that may have faults and
// with a record of what it sent when.
type network struct {
	*testing.T
	m      *miniredis.Miniredis
	clean  redis.UniversalClient
	faulty redis.UniversalClient
	faults *redistest.Faults
	log    *sendLog
}

func faultyBubble(t *testing.T, test func(n network)) {
	t.Helper()
	systest.Bubble(t, func(t *testing.T, m *miniredis.Miniredis, clean redis.UniversalClient) {
		faults := redistest.NewFaults(systest.BubbleDialer(m))
		n := network{t, m, clean, systest.BubbleClientOf(t, faults.Dial, 200), faults, &sendLog{start: time.Now()}}
		n.faulty.AddHook(n.log)
		defer func() { require.NoError(t, n.faulty.Close()) }()
		test(n)
	})
}

// sendLog is a hook that notes when scripts and SETs are sent, from a start on.
type sendLog struct {
	mu    sync.Mutex
	start time.Time
	sent  []time.Duration
}

func (*sendLog) DialHook(next redis.DialHook) redis.DialHook { return next }

func (l *sendLog) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		l.note(cmd)
		return next(ctx, cmd)
	}
}

func (l *sendLog) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return func(ctx context.Context, cmds []redis.Cmder) error {
		l.note(cmds...)
		return next(ctx, cmds)
	}
}

func (l *sendLog) note(cmds ...redis.Cmder) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, cmd := range cmds {
		if slices.Contains([]string{"set", "eval", "evalsha"}, cmd.Name()) {
			l.sent = append(l.sent, time.Since(l.start))
		}
	}
}

// begin forgets what was sent so far, and counts from now on.
func (l *sendLog) begin() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.start, l.sent = time.Now(), nil
}

func (l *sendLog) times() []time.Duration {
	l.mu.Lock()
	defer l.mu.Unlock()
	return slices.Clone(l.sent)
}

// gaps are the times between what was sent.
func (l *sendLog) gaps() []time.Duration {
	sent := l.times()
	var gaps []time.Duration
	for i := 1; i < len(sent); i++ {
		gaps = append(gaps, sent[i]-sent[i-1])
	}
	return gaps
}

// taught is a Locker on the faulty client, whose scripts the server knows and for whose
// names no caller waits.
func (n network) taught(opts ...sluice.LockOption) (*sluice.Locker, func()) {
	n.Helper()
	l, done := systest.BubbleLocker(n.T, n.faulty, opts...)
	for range 2 {
		k, err := l.TryLock(n.Context(), "taught")
		require.NoError(n, err)
		require.NoError(n, k.Extend(n.Context(), time.Minute))
		require.NoError(n, k.Unlock(n.Context()))
	}
	n.log.begin()
	return l, done
}

// warmBoth has the faulty client make so many connections for single commands, and as many for
// pipelines.
func (n network) warmBoth(connections int) {
	n.Helper()
	n.faults.Delay(time.Millisecond) // so that they are under way at the same time
	var all sync.WaitGroup
	for range connections {
		all.Go(func() { n.faulty.Ping(n.Context()) })
	}
	all.Wait()
	n.warmPipelines(connections)
}

// warmPipelines has the faulty client make so many of the connections that it keeps for
// pipelines.
func (n network) warmPipelines(connections int) {
	n.Helper()
	n.faults.Delay(time.Millisecond) // so that they are under way at the same time
	defer n.faults.Delay(0)
	var all sync.WaitGroup
	for range connections {
		all.Go(func() {
			pipe := n.faulty.Pipeline()
			pipe.Ping(n.Context())
			_, err := pipe.Exec(n.Context())
			require.NoError(n, err)
		})
	}
	all.Wait()
}
