package taskloop

import (
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/sluice-go/sluice/internal/lease"
)

// moves are the transitions that change a delivery's state. All others are none.
var moves = map[state]map[event]state{
	handling:  {handlerReturned: pending, leaseLost: lost},
	pending:   {exchangeSent: reporting, dispositionTaken: settled, leaseLost: lost},
	reporting: {exchangeFailed: pending, dispositionTaken: settled, leaseLost: lost},
	settled:   {},
	lost:      {},
}

func TestDelivery_EachTransition(t *testing.T) {
	t.Parallel()
	for s := range states {
		for e := range events {
			want, moved := moves[s][e]
			if !moved {
				want = s
			}
			d := &delivery{state: s}
			require.Equal(t, moved, d.on(e), "state %d, event %d", s, e)
			require.Equal(t, want, d.state, "state %d, event %d", s, e)
		}
	}
}

// TestDelivery_TheEndIsTheEnd: a delivery that is settled or lost stays so.
func TestDelivery_TheEndIsTheEnd(t *testing.T) {
	t.Parallel()
	for _, end := range []state{settled, lost} {
		d := &delivery{state: end}
		for e := range events {
			require.False(t, d.on(e))
			require.Equal(t, end, d.state)
		}
	}
}

// TestDelivery_LosesItsLeaseInAnyState: except one that is settled.
func TestDelivery_LosesItsLeaseInAnyState(t *testing.T) {
	t.Parallel()
	for s := range states {
		d := &delivery{state: s}
		require.Equal(t, s != settled && s != lost, d.on(leaseLost))
		require.Equal(t, s == settled, d.state == settled)
	}
}

func TestDelivery_DatesItsLeaseFromTheSend(t *testing.T) {
	t.Parallel()
	const ttl = 30 * time.Second
	sent := time.Now().Add(-5 * time.Second)
	d := &delivery{}
	d.leased(sent, ttl)
	require.Equal(t, lease.SafeUntil(sent, ttl), d.until)
	require.Equal(t, sent.Add(10*time.Second), d.renewAt)
	require.Equal(t, sent.Add(7*time.Second), d.renewFrom)

	now := time.Now()
	d.retryExtension(now, ttl)
	require.Equal(t, now.Add(1500*time.Millisecond), d.renewAt)
	require.Equal(t, d.renewAt, d.renewFrom)
	require.Equal(t, lease.SafeUntil(sent, ttl), d.until, "the lease is as long as before")
}

func TestBag_RemovesFromAnyPlace(t *testing.T) {
	t.Parallel()
	var b bag
	var all [5]*delivery
	for i := range all {
		all[i] = &delivery{}
		b.add(all[i])
	}
	for _, i := range []int{2, 4, 0, 3, 1} {
		b.remove(all[i])
		require.False(t, slices.Contains(b, all[i]))
		for at, d := range b {
			require.Equal(t, at, d.index)
		}
	}
	require.Empty(t, b)
}

func TestDemand_ADueNoticeDuringAClaimLeadsToAnother(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		notice  bool // comes while the claim is under way
		all     bool // the claim brings all that it asked for
		another bool
	}{
		"nothing left":     {},
		"due meanwhile":    {notice: true, another: true},
		"more may be left": {all: true, another: true},
		"both":             {notice: true, all: true, another: true},
	} {
		d := demand{claimWanted: true}
		epoch := d.dueEpoch
		if test.notice {
			d.noteDue()
		}
		d.noteClaimed(test.all, epoch)
		require.Equal(t, test.another, d.claimWanted, name)
		require.Equal(t, test.all, d.backlogLikely, name)
	}
}
