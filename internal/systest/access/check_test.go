package access

import (
	"context"
	"strings"
	"testing"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/sluice-go/sluice"
	"github.com/sluice-go/sluice/internal/systest"
)

// TestAccess_CheckNamesWhatIsMissing takes one word after the other from the documented rule: each
// Check that needs it names the command, or the key or channel, and has changed nothing. With the
// whole rule nothing is denied.
func TestAccess_CheckNamesWhatIsMissing(t *testing.T) {
	t.Parallel()
	for name, half := range map[string]struct {
		parts   []int
		check   func(t *testing.T, rdb redis.UniversalClient) func(context.Context) error
		neither []string // what it does not ask for
	}{
		"locks": {[]int{grantsOfAll, grantsOfLocks, grantsOfFences, grantsOfPermits}, func(t *testing.T, rdb redis.UniversalClient) func(context.Context) error {
			return func(ctx context.Context) error {
				if err := systest.NewLocker(t, rdb, sluice.WithFencing()).Check(ctx); err != nil {
					return err
				}
				return systest.NewLocker(t, rdb, sluice.WithPermits(2)).Check(ctx)
			}
		}, []string{"&Lock:*:wake:*"}},
		"queues": {[]int{grantsOfAll, grantsOfQueues}, func(t *testing.T, rdb redis.UniversalClient) func(context.Context) error {
			q, err := sluice.NewQueue(rdb, "q")
			require.NoError(t, err)
			w := &sluice.Worker{Queue: q, Handler: func(context.Context, sluice.Entry) error { return nil }}
			return w.Check
		}, []string{"&Queue:*:wake:*", "&Queue:*:canceled", "+set", "+del", "+unlink"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			g := newGuarded(t, half.parts...)
			check := half.check(t, g.user)
			require.NoError(t, check(t.Context()))
			require.Empty(t, refusals(t, g.admin))
			for _, word := range g.rule {
				if !strings.ContainsAny(word[:1], "+~&") {
					continue
				}
				g.grant(word)
				err := check(t.Context())
				for _, other := range half.neither {
					if word == other {
						require.NoError(t, err, word)
					}
				}
				if err == nil {
					require.Contains(t, half.neither, word)
					continue
				}
				named := strings.ToUpper(strings.Split(word[1:], "|")[0])
				if word[0] != '+' {
					_, named, _ = strings.Cut(word, "}") // the ending of a key or channel, if it has one
					named = strings.TrimSuffix(named, "*")
				}
				require.Contains(t, strings.ToUpper(err.Error()), strings.ToUpper(named), word)
			}
			require.Empty(t, g.admin.Keys(t.Context(), "*").Val())
		})
	}
}
