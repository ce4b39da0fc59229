// Package replicas tests what counts once replicas have acknowledged it.
package replicas

import (
	"testing"

	"github.com/sluice-go/sluice/internal/systest"
)

func TestMain(m *testing.M) { systest.Main(m) }
