package main

import (
	"bytes"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestBasket_SellsWholeBaskets: every piece that has left the shop is in a basket that was sold.
func TestBasket_SellsWholeBaskets(t *testing.T) {
	var out, log bytes.Buffer
	require.Zero(t, run(nil, &out, &log), &log)
	require.Contains(t, out.String(), "200 buyers: ")
	require.NotContains(t, out.String(), " 0 sold out") // 40 pieces of each of six items are 120 baskets of two at the most
}

func TestBasket_RejectsBadFlags(t *testing.T) {
	for args, status := range map[string]int{"-h": 0, "-buyers -1": 2, "-stock -1": 2, "-no-such": 2} {
		var out, log bytes.Buffer
		require.Equal(t, status, run(strings.Fields(args), &out, &log), args)
		require.NotEmpty(t, log.String())
	}
}
