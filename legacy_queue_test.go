package sluice_test

import "github.com/sluice-go/sluice/internal/systest"

// For test files that are about to move.
type diary = systest.Buffer

var (
	start = systest.StartWorker
	teach = systest.WarmQueue
	at    = systest.After
)
