package main

import (
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/time/rate"
)

// TestUsers_AStrangerKeepsOthersNotOut: who has many addresses has those of one network, and they are forgotten.
func TestUsers_AStrangerKeepsOthersNotOut(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		u := &users{checks: map[string]*rate.Limiter{}}
		try := func(address string) bool { return u.mayTry(address) }
		for i := range 20_000 {
			try(fmt.Sprintf("[2001:db8::%x]:443", i+1))
		}
		require.Len(t, u.checks, 1)
		require.False(t, try("[2001:db8::ffff:1]:443"))
		require.True(t, try("[2001:db8:0:1::1]:443"))
		require.True(t, try("[::ffff:192.0.2.1]:443"))
		require.Contains(t, u.checks, "192.0.2.1")

		for i := range 20_000 {
			try(fmt.Sprintf("10.%d.%d.1:443", i/250, i%250))
		}
		require.LessOrEqual(t, len(u.checks), mostAddresses+1)
		require.False(t, try("198.51.100.1:443"), "it shares what all the others have")
		time.Sleep(10 * time.Second)
		for i := range 40 {
			require.True(t, try(fmt.Sprintf("198.51.100.%d:443", i)))
		}
		require.Less(t, len(u.checks), 100)
	})
}
