//go:build !now

package main

import "github.com/sluice-go/sluice"

var retention []sluice.QueueOption
