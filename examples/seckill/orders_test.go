package main

import (
	"fmt"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestOrder_IsPaidOrCancelled runs a payment and a cancellation of each order at once.
func TestOrder_IsPaidOrCancelled(t *testing.T) {
	t.Parallel()
	const n = 50
	s := newShop(t, n)
	for i := range n {
		id, pays := fmt.Sprint(i), false
		require.NoError(t, s.place(t.Context(), order{id: id, customer: i}, count(t, s, `SELECT stock FROM item`)))

		var errPay, errCancel error
		var both sync.WaitGroup
		begin := make(chan struct{})
		both.Go(func() { <-begin; pays, errPay = s.pay(t.Context(), id) })
		both.Go(func() { <-begin; errCancel = s.cancel(t.Context(), id) })
		close(begin)
		both.Wait()
		require.NoError(t, errPay)
		require.NoError(t, errCancel)

		want := map[bool]string{true: paid, false: cancelled}[pays]
		require.Equal(t, 1, count(t, s, `SELECT count(*) FROM orders WHERE id = ? AND status = ?`, id, want))
	}
	taken := count(t, s, `SELECT count(*) FROM orders WHERE status = 'paid'`)
	require.Equal(t, n-taken, count(t, s, `SELECT stock FROM item`))
	t.Logf("%d paid, %d cancelled", taken, n-taken)
}

func TestOrder_ChecksItsConditions(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		order order
		seen  int
	}{
		"the stock is not what was seen":   {order{id: "new", customer: 2}, 3},
		"the customer has an unpaid order": {order{id: "new", customer: 1}, 1},
		"the ID is taken":                  {order{id: "old", customer: 2}, 1},
		"nothing is left":                  {order{id: "new", customer: 2}, 0},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := newShop(t, 2)
			require.NoError(t, s.place(t.Context(), order{id: "old", customer: 1}, 2))
			require.ErrorIs(t, s.place(t.Context(), tc.order, tc.seen), errOvertaken)
			require.Equal(t, 1, count(t, s, `SELECT stock FROM item`))
			require.Equal(t, 1, count(t, s, `SELECT count(*) FROM orders`))
			require.Equal(t, 1, count(t, s, `SELECT count(*) FROM movement`))
		})
	}
}

// TestOrder_CanBePlacedAgainAfterACancellation also checks that the unit is in stock again.
func TestOrder_CanBePlacedAgainAfterACancellation(t *testing.T) {
	t.Parallel()
	s := newShop(t, 1)
	require.NoError(t, s.place(t.Context(), order{id: "first", customer: 1}, 1))
	require.NoError(t, s.cancel(t.Context(), "first"))
	require.NoError(t, s.place(t.Context(), order{id: "second", customer: 1}, 1))

	paidNow, err := s.pay(t.Context(), "first")
	require.NoError(t, err)
	require.False(t, paidNow)
	v, err := s.look(t.Context(), 1)
	require.NoError(t, err)
	require.Equal(t, view{stock: 0, status: unpaid, orders: 2}, v)
}

// TestOrder_OfACustomerWhoHasOneFollowsIt: Redis has lost the first, and the second holds its unit.
func TestOrder_OfACustomerWhoHasOneFollowsIt(t *testing.T) {
	t.Parallel()
	s := newShop(t, 2)
	for _, is := range []string{unpaid, paid} {
		for _, id := range []string{"first", "second"} {
			o, status, err := s.follow(t.Context(), id, 1)
			require.NoError(t, err)
			require.Equal(t, "first", o.id)
			require.Equal(t, is, status)
		}
		_, err := s.pay(t.Context(), "first")
		require.NoError(t, err)
	}
	require.Equal(t, 1, count(t, s, `SELECT stock FROM item`))
}
