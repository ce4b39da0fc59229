package inspect

import (
	"testing"

	"github.com/stretchr/testify/require"
)

func TestCount_HasCommas(t *testing.T) {
	for n, want := range map[int64]string{0: "0", 999: "999", 1000: "1,000", 1234567: "1,234,567", -1234: "-1,234", -123: "-123", 9223372036854775807: "9,223,372,036,854,775,807"} {
		require.Equal(t, want, Count(n))
	}
	require.Equal(t, "1 task", Plural(1, "task"))
	require.Equal(t, "2,000 tasks", Plural(2000, "task"))
}
