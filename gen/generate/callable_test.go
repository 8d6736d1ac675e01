// SPDX-License-Identifier: BSD-2-Clause

package generate

import (
	"maps"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/goverbs/goverbs/gen/emit"
)

// TestCallable checks that every function of every header is callable from Go, and that a function that is missing from
// the printed source is reported, whether it is generated or hand-written.
func TestCallable(t *testing.T) {
	res := fromModels(t)
	total := 0
	for _, h := range res.Coverage {
		if h.GOOS != "linux" { // no package calls its functions
			assert.Zero(t, h.By[Callable].Total, h.Header)
			continue
		}
		n := h.By[Callable]
		assert.Equal(t, n.Total, n.Emitted, h.Header)
		assert.Equal(t, n.Total, h.By["functions"].Total+h.By["inline functions"].Total, h.Header)
		total += n.Total
	}
	if primary == "65.0" {
		assert.Equal(t, 489+84, total)
	}
	for file, lost := range map[string]string{
		"libibverbs/extern.go":   "struct ibv_pd *ibv_alloc_pd(struct ibv_context *context)",
		"libibverbs/queue.go":    "int ibv_close_xrcd(struct ibv_xrcd *xrcd)",
		"libibverbs/slot.go":     "void ibv_wr_start(struct ibv_qp_ex *qp)",
		"librdmacm/extern.go":    "int rbind(int socket, const struct sockaddr *addr, socklen_t addrlen)",
		"libmlx5/segment.go":     "uint8_t mlx5dv_get_cqe_owner(struct mlx5_cqe64 *cqe)",
		"libibverbs/extended.go": "int ibv_dealloc_td(struct ibv_td *td)",
	} {
		broken := *res
		broken.Files = maps.Clone(res.Files)
		text := string(broken.Files[file])
		require.Contains(t, text, "// C: "+lost+" (", file)
		broken.Files[file] = []byte(strings.Replace(text, "// C: "+lost+" (", "// ", 1))
		_, err := cover(&broken)
		name := lost[:strings.IndexByte(lost, '(')]
		name = strings.TrimLeft(name[strings.LastIndexByte(name, ' ')+1:], "*")
		assert.ErrorContains(t, err, "callable function: "+name)
	}
}

// TestVerbsAreDeterministic checks that the functions are printed the same way each time.
func TestVerbsAreDeterministic(t *testing.T) {
	plan := fromModels(t).Plans[0].Verbs
	first, err := emit.Verbs(plan)
	require.NoError(t, err)
	again, err := emit.Verbs(plan)
	require.NoError(t, err)
	assert.Equal(t, first, again)
}
