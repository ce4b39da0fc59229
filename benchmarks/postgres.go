package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"strconv"
	"sync"
	"syscall"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
)

// errNotHere says that a contender needs what this machine does not have. Its turns are then
// no failures: the table says why they have no figures.
var errNotHere = errors.New("not measured")

// postgres is a PostgreSQL server for this run, in a folder of its own. It starts when a
// contender first asks for it.
type postgres struct {
	once   sync.Once
	err    error
	url    string
	folder string
	server *exec.Cmd
}

// address returns the URL of the server's database.
func (p *postgres) address(ctx context.Context) (string, error) {
	p.once.Do(func() { p.err = p.start(ctx) })
	return p.url, p.err
}

// start makes the server's folder and runs it. PostgreSQL refuses to run as root; its own user
// takes over then.
func (p *postgres) start(ctx context.Context) error {
	initdb, server, err := postgresPrograms()
	if err != nil {
		return fmt.Errorf("%w: there is no PostgreSQL on this machine (Debian: postgresql)", errNotHere)
	}
	if p.folder, err = os.MkdirTemp("", "benchmarks-postgres"); err != nil {
		return err
	}
	as, err := p.handOver()
	if err != nil {
		return err
	}
	data := filepath.Join(p.folder, "data")
	made := exec.CommandContext(ctx, initdb, "-D", data, "-U", "benchmarks", "-A", "trust", "--no-sync", "--no-locale", "-E", "UTF8")
	made.SysProcAttr, made.Dir = as, p.folder
	if out, err := made.CombinedOutput(); err != nil {
		return fmt.Errorf("initdb: %w: %s", err, out)
	}
	port, err := freePort()
	if err != nil {
		return err
	}
	p.server = exec.Command(server, "-D", data, "-k", p.folder, "-h", "127.0.0.1", "-p", strconv.Itoa(port), //nolint:noctx // stop ends it
		"-c", "synchronous_commit=off", "-c", "shared_buffers=512MB", "-c", "max_connections=200", "-c", "max_wal_size=4GB")
	p.server.SysProcAttr, p.server.Dir = as, p.folder
	p.server.Stderr = io.Discard
	if err := p.server.Start(); err != nil {
		return err
	}
	p.url = fmt.Sprintf("postgres://benchmarks@127.0.0.1:%d/postgres?pool_max_conns=%d", port, poolSize)
	return p.answers(ctx)
}

// postgresPrograms finds the programs, which Debian keeps outside of PATH.
func postgresPrograms() (initdb, server string, err error) {
	found := func(program string) (string, error) {
		if path, err := exec.LookPath(program); err == nil {
			return path, nil
		}
		paths, err := filepath.Glob("/usr/lib/postgresql/*/bin/" + program)
		if err == nil && len(paths) == 0 {
			err = exec.ErrNotFound
		}
		if err != nil {
			return "", err
		}
		return paths[len(paths)-1], nil
	}
	if initdb, err = found("initdb"); err != nil {
		return "", "", err
	}
	server, err = found("postgres")
	return initdb, server, err
}

// handOver gives the folder to the user as whom the server runs: postgres, if this is root.
func (p *postgres) handOver() (*syscall.SysProcAttr, error) {
	attr := &syscall.SysProcAttr{Setpgid: true} // Ctrl-C is for this process, which ends the server
	if os.Geteuid() != 0 {
		return attr, nil
	}
	u, err := user.Lookup("postgres")
	if err != nil {
		return nil, fmt.Errorf("%w: root must not run PostgreSQL, and there is no user postgres", errNotHere)
	}
	uid, err1 := strconv.Atoi(u.Uid)
	gid, err2 := strconv.Atoi(u.Gid)
	attr.Credential = &syscall.Credential{Uid: uint32(uid), Gid: uint32(gid)} //nolint:gosec // IDs are small
	return attr, errors.Join(err1, err2, os.Chown(p.folder, uid, gid))
}

func freePort() (int, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0") //nolint:noctx // it does not block
	if err != nil {
		return 0, err
	}
	defer func() { _ = l.Close() }()
	return l.Addr().(*net.TCPAddr).Port, nil
}

// answers waits until the server takes connections.
func (p *postgres) answers(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	pool, err := pgxpool.New(ctx, p.url)
	if err != nil {
		return err
	}
	defer pool.Close()
	for {
		if err = pool.Ping(ctx); err == nil || ctx.Err() != nil {
			return err
		}
		sleep(ctx, 50*time.Millisecond)
	}
}

// stop ends the server, and removes its folder. SIGINT ends it without waiting for clients.
func (p *postgres) stop() {
	if p.server != nil && p.server.Process != nil {
		_ = p.server.Process.Signal(os.Interrupt)
		_ = p.server.Wait()
	}
	if p.folder != "" {
		_ = os.RemoveAll(p.folder)
	}
}
