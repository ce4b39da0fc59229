package main

import (
	"embed"
	"encoding/binary"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"time"
)

//go:embed shim
var shims embed.FS

// compileShim compiles a library for LD_PRELOAD: "clock" shifts a server's clock, "disk" slows
// its disk down.
func compileShim(dir, name string) (library string, err error) {
	code, err := shims.ReadFile("shim/" + name + ".c")
	if err != nil {
		return "", err
	}
	source := filepath.Join(dir, name+".c")
	library = filepath.Join(dir, name+".so")
	if err := os.WriteFile(source, code, 0o600); err != nil {
		return "", err
	}
	out, err := exec.Command("cc", "-O2", "-shared", "-fPIC", "-o", library, source, "-ldl").CombinedOutput()
	if err != nil {
		return "", fmt.Errorf("cc: %w\n%s", err, out)
	}
	return library, nil
}

// clockFile is the file from which the shim in a server reads the offset of the clock.
type clockFile struct{ file *os.File }

func newClockFile(path string) (*clockFile, error) {
	file, err := os.Create(path)
	if err != nil {
		return nil, err
	}
	c := &clockFile{file}
	return c, c.set(0)
}

// set sets the offset. It takes effect at once: the file is mapped into the server's memory.
func (c *clockFile) set(offset time.Duration) error {
	_, err := c.file.WriteAt(binary.LittleEndian.AppendUint64(nil, uint64(offset)), 0)
	return err
}
