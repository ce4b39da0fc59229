//go:build long

package queues

import "testing"

func TestExchange_IsWhatItsHalvesAreOnManyQueues(t *testing.T) { compareExchanges(t, 150) }

func TestEnqueueBatch_IsWhatItsTasksAreOnManyQueues(t *testing.T) { compareBatches(t, 150) }
