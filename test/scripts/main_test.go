// Package scripts tests the scripts in lua/: the rules that all keep, and some of them run by
// themselves.
package scripts

import (
	"os"
	"testing"

	"github.com/sluice-go/sluice/internal/systest"
)

var (
	lua     = os.DirFS("../..")
	scripts = systest.Scripts()
)

func TestMain(m *testing.M) { systest.Main(m) }
