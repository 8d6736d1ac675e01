// SPDX-License-Identifier: BSD-2-Clause

package vm

import (
	"bytes"
	"os"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"github.com/ulikunitz/xz"
)

// tree returns modules with dependencies as in a kernel: with both spellings of a name, and a compressed file.
func tree(t *testing.T) modules {
	t.Helper()
	dir := t.TempDir()
	add := func(name, modinfo string) { elfFile{modinfo: modinfo}.write(t, dir, "kernel/drivers/"+name+".ko") }
	add("ib_core", "license=GPL\x00depends=\x00")
	add("ib-uverbs", "depends=ib_core\x00")
	add("udp_tunnel", "depends=\x00")
	add("ip6_udp_tunnel", "depends=udp_tunnel\x00")
	add("crc32_generic", "depends=\x00")
	add("unwanted", "depends=\x00")
	add("lonely", "depends=not-there,ib_core\x00")
	add("chicken", "depends=egg\x00")
	add("egg", "depends=chicken\x00")
	var packed bytes.Buffer
	w, err := xz.NewWriter(&packed)
	require.NoError(t, err)
	_, err = w.Write(elfFile{modinfo: "softdep=pre: crc32-generic crc32-fast post: " +
		"unwanted\x00depends=ib_uverbs,ip6_udp_tunnel,udp_tunnel,builtin_one\x00"}.encode(t))
	require.NoError(t, err)
	require.NoError(t, w.Close())
	put(t, dir, "kernel/drivers/rxe/rdma_rxe.ko.xz", packed.Bytes())
	found, err := findModules(dir)
	require.NoError(t, err)
	return found
}

func content(file string) ([]byte, error) {
	data, err := os.ReadFile(file)
	if err != nil {
		return nil, err
	}
	return decompress(file, data)
}

func TestLoadOrder(t *testing.T) {
	builtin := builtins("kernel/lib/builtin-one.ko\nkernel/fs/other.ko\n")
	order, err := tree(t).loadOrder([]string{"rdma_rxe", "ib_core", "builtin_one"}, builtin, content)
	require.NoError(t, err)
	assert.Equal(t, []string{"crc32_generic", "ib_core", "ib_uverbs", "udp_tunnel", "ip6_udp_tunnel", "rdma_rxe"},
		order)

	_, err = tree(t).loadOrder([]string{"lonely"}, builtin, content)
	assert.EqualError(t, err, "no module not_there (wanted by this program → lonely)")
	_, err = tree(t).loadOrder([]string{"chicken"}, builtin, content)
	assert.EqualError(t, err, "modules need each other: chicken → egg → chicken")
}
