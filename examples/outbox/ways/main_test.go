package main

import (
	"bytes"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sluice-go/sluice/internal/redistest"
	"github.com/sluice-go/sluice/internal/sqltest"
)

func TestRun(t *testing.T) {
	redistest.NotShort(t)
	dsn, rdb := sqltest.Start(t, sqltest.Postgres).DSN, redistest.Start(t).Client(t)
	for name := range ways {
		var out bytes.Buffer
		require.NoError(t, run(t.Context(), &out, name, dsn, rdb))
		require.Equal(t, name+": welcomed\n", out.String())
	}
}
