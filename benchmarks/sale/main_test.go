package main

import (
	"os"
	"os/exec"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sluice-go/sluice/examples/seckill/shophttp"
)

func TestMain(m *testing.M) {
	shophttp.RunChild(ways)
	os.Exit(m.Run())
}

// TestSale_HoldsOneByEachWay also has every way but "no lock" sell exactly its stock: the status
// says so.
func TestSale_HoldsOneByEachWay(t *testing.T) {
	if _, err := exec.LookPath("redis-server"); err != nil && os.Getenv("CI") != "true" {
		t.Skip("there is no redis-server program on this machine")
	}
	var out, log strings.Builder
	args := strings.Fields("-requests 1000 -stock 20 -rounds 1 -pay 500ms -connections 16 -procs 2")
	require.Zero(t, parentMain(args, &out, &log), "%s", log.String())
	t.Log(out.String())
	for _, method := range methods {
		require.Contains(t, out.String(), "| "+method+" |")
	}
	require.Equal(t, 2, parentMain([]string{"-stock", "0"}, &out, &log))
}
