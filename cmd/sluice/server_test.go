package main

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sluice-go/sluice/internal/redistest"
)

// TestServer_TLS has the errors of a wrong address or certificate say what to do, and come within
// seconds.
func TestServer_TLS(t *testing.T) {
	t.Parallel()
	authority, err := redistest.NewAuthority()
	require.NoError(t, err)
	server := redistest.StartTLS(t, authority)
	rdb := server.Client(t)
	(stage{T: t, shell: shell{t: t}, rdb: rdb}).fill((stage{T: t, rdb: rdb}).queue("orders"))
	ca := rdb.ConfigGet(t.Context(), "tls-ca-cert-file").Val()["tls-ca-cert-file"]
	s := shell{t: t, env: map[string]string{"SLUICE_URL": "rediss://" + server.Addr, "SLUICE_TLS_CA": ca}}
	require.Contains(t, s.ok("queues"), "orders")

	s.env["SLUICE_TLS_CA"] = ""
	got := s.run("queues")
	require.Equal(t, exitUnavailable, got.code, got.err)
	require.Contains(t, got.err, "--tls-ca")
	s.env["SLUICE_TLS_CA"], s.env["SLUICE_TLS_SERVER_NAME"] = ca, "elsewhere.example"
	got = s.run("queues")
	require.Equal(t, exitUnavailable, got.code, got.err)
	require.Contains(t, got.err, "--tls-server-name")
	got = s.run("queues", "--url", "redis://"+server.Addr) // the settings for TLS would be ignored
	require.Equal(t, exitUsage, got.code, got.err)
	require.Contains(t, got.err, "rediss")
	got = shell{t: t}.run("queues", "--url", "redis://"+server.Addr)
	require.Equal(t, exitUnavailable, got.code, got.err)
	require.Contains(t, got.err, "rediss://")

	plain := redistest.Redis(t)
	got = s.run("queues", "--url", "rediss://"+plain.Addr, "--tls-server-name", "127.0.0.1")
	require.Equal(t, exitUnavailable, got.code, got.err)
}

func TestServer_Sentinel(t *testing.T) {
	primary := redistest.Start(t)
	sentinel := redistest.StartSentinelFor(t, primary)
	rdb := primary.Client(t)
	(stage{T: t, shell: shell{t: t}, rdb: rdb}).fill((stage{T: t, rdb: rdb}).queue("orders"))
	s := shell{t: t, env: map[string]string{"SLUICE_URL": "redis://" + sentinel.Addr, "SLUICE_SENTINEL_MASTER": redistest.MasterName}}
	require.Contains(t, s.ok("queues"), "orders")
	s.ok("cancel", "orders", "due-1")
	s.env["SLUICE_SENTINEL_MASTER"] = "another"
	got := s.run("queues")
	require.Equal(t, exitUnavailable, got.code, got.err)
	delete(s.env, "SLUICE_SENTINEL_MASTER")
	require.Contains(t, s.run("queues").err, "--sentinel-master")
	s.env["SLUICE_URL"] += "," + sentinel.Addr
	require.Contains(t, s.run("queues").err, "--sentinel-master")
}
