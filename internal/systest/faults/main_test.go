// Package faults tests the library on servers that fail and networks that lose, delay
// or hold back what is sent.
package faults

import (
	"testing"

	"github.com/sluice-go/sluice/internal/systest"
)

func TestMain(m *testing.M) { systest.Main(m) }
