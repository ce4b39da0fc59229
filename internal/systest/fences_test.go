package systest_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/sluice-go/sluice/internal/systest"
)

// TestWrongFences: a fence that is given twice, or after a higher one was known, is wrong; of two
// that overlap either may be higher.
func TestWrongFences(t *testing.T) {
	t.Parallel()
	at := func(ms int) time.Time { return time.UnixMilli(int64(ms)) }
	grant := func(fence int64, sent, known int) systest.Grant {
		return systest.Grant{Fence: fence, Sent: at(sent), Known: at(known)}
	}
	require.Empty(t, systest.WrongFences("n", []systest.Grant{grant(3, 40, 50), grant(1, 0, 10), grant(2, 20, 30)}))
	require.Empty(t, systest.WrongFences("n", []systest.Grant{grant(2, 0, 30), grant(1, 20, 40)}))
	require.Equal(t, []string{"n: fence 1 was given after 2"}, systest.WrongFences("n", []systest.Grant{grant(2, 0, 10), grant(1, 20, 30)}))
	require.Equal(t, []string{"n: fence 1 was given twice"}, systest.WrongFences("n", []systest.Grant{grant(1, 0, 30), grant(1, 20, 40)}))
}
