package main

import (
	"fmt"
	"slices"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/sluice-go/sluice"
)

const permitsOfName = 3

// permits measures a name that several callers may hold at a time.
func permits() scenario {
	return scenario{
		name: "permits",
		about: fmt.Sprintf("3 processes of 20 goroutines on one name, with %d permits or as a plain lock; the least share is a process's,"+
			" of a third of all sections", permitsOfName),
		measure: perSecond,
		entries: enter(sluiceName+" WithPermits", sluiceName),
		length:  4 * time.Second,
		columns: []column{{leastShare, slices.Min[[]float64], percent}, {withoutATurn, slices.Max[[]float64], whole}, scriptsColumn, commandsColumn},
		turn:    crowds{processes: 3, size: 20, unguarded: true}.turn,
	}
}

func newPermits(rdb redis.UniversalClient, _ setup) (contender, error) {
	l, err := sluice.NewLocker(rdb, sluice.WithPermits(permitsOfName))
	return locker{l}, err
}
