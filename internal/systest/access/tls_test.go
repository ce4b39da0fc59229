package access

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"regexp"
	"strconv"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/sluice-go/sluice"
	"github.com/sluice-go/sluice/internal/redistest"
	"github.com/sluice-go/sluice/internal/systest"
)

// TestAccess_TLS is a server that speaks nothing else, with a certificate by an authority
// of its own. (The whole suite runs over TLS too: see redistest.Each.) A client that does
// not trust the authority, or expects another host, gets a definite error at once, and has
// sent nothing. One without TLS sees a server that ends each connection: Lock waits that out,
// as it does any outage.
func TestAccess_TLS(t *testing.T) {
	redistest.NotShort(t)
	t.Parallel()
	authority, err := redistest.NewAuthority()
	require.NoError(t, err)
	stranger, err := redistest.NewAuthority()
	require.NoError(t, err)
	s := redistest.StartTLS(t, authority)
	rdb := s.Client(t)
	t.Run("trusted", func(t *testing.T) { overTLS(t, rdb) })

	retries := 0 // go-redis's default, for the first; one attempt is enough for the others
	elsewhere := authority.Trust()
	elsewhere.ServerName = "redis.example"
	for _, wrong := range []struct {
		name   string
		config *tls.Config
		reason any
	}{
		{"another authority", stranger.Trust(), new(x509.UnknownAuthorityError)},
		{"another host", elsewhere, new(x509.HostnameError)},
		{"no TLS", nil, nil},
	} {
		t.Run(wrong.name, func(t *testing.T) {
			client := redis.NewClient(&redis.Options{Addr: s.Addr, TLSConfig: wrong.config, DialerRetries: retries})
			retries = 1
			defer func() { _ = client.Close() }()
			l, q := systest.NewLocker(t, client), systest.NewQueue(t, client)
			before := commandsRun(t, rdb)
			for name, run := range map[string]func() error{
				"lock":     func() error { _, err := l.Lock(t.Context(), "b", sluice.WithMaxWait(6*time.Second)); return err },
				"try lock": func() error { _, err := l.TryLock(t.Context(), "b", sluice.WithFencing()); return err },
				"inspect":  func() error { _, err := l.Inspect(t.Context(), "b"); return err },
				"enqueue":  func() error { _, err := q.Enqueue(t.Context(), sluice.Task{ID: "b"}); return err },
				"claim":    func() error { _, err := q.Claim(t.Context(), 1, time.Minute); return err },
				"wait":     func() error { return q.Wait(t.Context()) },
			} {
				start := time.Now()
				err := run()
				require.Less(t, time.Since(start), 20*time.Second, name)  // a busy machine shakes hands slowly
				if name != "wait" || !errors.Is(err, sluice.ErrUnknown) { // a look is given up after a second, whatever has come of it
					require.Equal(t, "refused", decision(err), "%s: %v", name, err)
				}
				if wrong.reason == nil {
					require.ErrorIs(t, err, sluice.ErrUnavailable, name)
				} else {
					require.NotErrorIs(t, err, sluice.ErrUnavailable, name)
					require.ErrorAs(t, err, wrong.reason, name)
				}
			}
			require.Empty(t, rdb.Keys(t.Context(), "*b*").Val())
			require.Equal(t, before+2, commandsRun(t, rdb)) // the two INFOs of this test
		})
	}
}

// overTLS has the release of a lock and a new task wake waiters.
func overTLS(t *testing.T, rdb redis.UniversalClient) {
	ctx, g := t.Context(), &guarded{T: t, admin: rdb}
	l, other := systest.NewLocker(t, rdb), systest.NewLocker(t, rdb)
	k, err := l.Lock(ctx, "a")
	require.NoError(t, err)
	q, err := sluice.NewQueue(rdb, "q", sluice.WithPollInterval(time.Hour))
	require.NoError(t, err)
	ended := make(chan error, 2)
	go func() { _, err := other.Lock(ctx, "a", sluice.WithRetryInterval(time.Hour)); ended <- err }()
	go func() { ended <- q.Wait(ctx) }()
	g.inLine("Lock:a")
	g.inLine("Queue:q")
	start, lag := time.Now(), systest.Lag(t)
	require.NoError(t, k.Unlock(ctx))
	_, err = q.Enqueue(ctx, sluice.Task{ID: "a"})
	require.NoError(t, err)
	require.NoError(t, <-ended)
	require.NoError(t, <-ended)
	require.Less(t, time.Since(start), time.Second+10*lag())
	require.Eventually(t, func() bool { return len(rdb.PubSubChannels(ctx, "{Queue:q}:wake:*").Val()) == 0 }, 10*time.Second, 10*time.Millisecond)
}

// commandsRun is how many commands a server has carried out, this one not counted.
func commandsRun(t *testing.T, rdb redis.UniversalClient) int {
	info := rdb.Info(t.Context(), "stats").Val()
	n, err := strconv.Atoi(regexp.MustCompile(`total_commands_processed:(\d+)`).FindStringSubmatch(info)[1])
	require.NoError(t, err)
	return n
}

// TestAccess_SharedServerIsGuarded: on the server that redistest.Guarded returns, what the
// library sends goes out as the restricted user, and what a test sends does not.
func TestAccess_SharedServerIsGuarded(t *testing.T) {
	t.Parallel()
	ctx, s := t.Context(), redistest.Guarded(t)
	rdb, name := s.Client(t), redistest.Name(t)
	require.NoError(t, rdb.Ping(ctx).Err())
	k, err := systest.NewLocker(t, rdb).Lock(ctx, name)
	require.NoError(t, err)
	require.NoError(t, k.Unlock(ctx))
	_, err = systest.NewQueue(t, rdb).Enqueue(ctx, sluice.Task{ID: "a"})
	require.NoError(t, err)
	clients := rdb.ClientList(ctx).Val()
	require.Regexp(t, `cmd=(evalsha|eval|set) user=sluice `, clients)
	require.NotRegexp(t, `cmd=(evalsha|eval|set) user=default `, clients)
}
