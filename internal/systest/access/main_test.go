// Package access tests the library with the rights that docs/operations.md grants and
// with less, over TLS, and for secrets in what it prints.
package access

import (
	"testing"

	"github.com/sluice-go/sluice/internal/systest"
)

func TestMain(m *testing.M) {
	watchLoggers()
	systest.Main(m)
}
