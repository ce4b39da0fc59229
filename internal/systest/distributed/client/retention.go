//go:build now

package main

import (
	"time"

	"github.com/sluice-go/sluice"
)

// retention has a queue remember what is done. The build before does not know that.
var retention = []sluice.QueueOption{sluice.WithRetention(time.Hour)}
