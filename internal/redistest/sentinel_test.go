package redistest_test

import (
	"net"
	"testing"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/sluice-go/sluice/internal/redistest"
)

func TestStartSentinelFor_WatchesTheTestsOwnPrimary(t *testing.T) {
	t.Parallel()
	primary := redistest.Start(t)
	sentinel := redistest.StartSentinelFor(t, primary)
	_, port, err := net.SplitHostPort(primary.Addr)
	require.NoError(t, err)
	known, err := sentinel.Client(t).Do(t.Context(), "sentinel", "get-master-addr-by-name", redistest.MasterName).StringSlice()
	require.NoError(t, err)
	require.Equal(t, []string{"127.0.0.1", port}, known)

	rdb := redis.NewFailoverClient(&redis.FailoverOptions{MasterName: redistest.MasterName, SentinelAddrs: []string{sentinel.Addr}})
	defer func() { require.NoError(t, rdb.Close()) }()
	require.NoError(t, rdb.Set(t.Context(), "a", "b", 0).Err())
	require.Equal(t, "b", primary.Client(t).Get(t.Context(), "a").Val())
}
