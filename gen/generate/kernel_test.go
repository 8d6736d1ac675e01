// SPDX-License-Identifier: BSD-2-Clause

package generate

import (
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// TestKernelHeaderCounts compares the numbers of declarations in every header of Linux 7.2 with independent counts from
// gcc's debug information. The debug information has an untagged union of rxe_av once, although two members have it,
// and also three empty structures of rxe_dma_info, which the shim omits.
func TestKernelHeaderCounts(t *testing.T) {
	want := map[string]headerCounts{
		"rdma/ib_user_verbs.h": {structs: 117, untaggedStructs: 16, untaggedUnions: 15,
			enums: 11, untaggedEnums: 2, enumerators: 130, constants: 6},
		"rdma/ib_user_ioctl_verbs.h": {structs: 8, enums: 19, enumerators: 108, constants: 2},
		"rdma/ib_user_ioctl_cmds.h":  {enums: 59, untaggedEnums: 1, enumerators: 220, constants: 2},
		"rdma/rdma_user_ioctl_cmds.h": {structs: 2, untaggedStructs: 1, untaggedUnions: 2,
			untaggedEnums: 1, enumerators: 2, constants: 2},
		"rdma/rdma_user_cm.h": {structs: 35, untaggedUnions: 2, enums: 1, untaggedEnums: 7,
			enumerators: 45, constants: 3},
		"rdma/ib_user_sa.h":   {structs: 3, untaggedEnums: 1, enumerators: 7},
		"rdma/rdma_netlink.h": {structs: 3, enums: 8, untaggedEnums: 19, enumerators: 275, constants: 7},
		"rdma/rdma_user_rxe.h": {structs: 15, untaggedStructs: 9, unions: 1, untaggedUnions: 5,
			untaggedEnums: 1, enumerators: 2},
		"rdma/siw-abi.h": {structs: 11, untaggedUnions: 4, enums: 4, enumerators: 36, constants: 5},
		"rdma/mlx5-abi.h": {structs: 34, untaggedUnions: 1, enums: 18, untaggedEnums: 6,
			enumerators: 86, constants: 1},
		"rdma/mlx5_user_ioctl_cmds.h":  {structs: 1, enums: 56, enumerators: 155, constants: 1},
		"rdma/mlx5_user_ioctl_verbs.h": {structs: 4, enums: 10, enumerators: 29},
		"rdma/mlx4-abi.h":              {structs: 16, enums: 3, untaggedEnums: 1, enumerators: 12, constants: 2},
		"rdma/efa-abi.h":               {structs: 9, enums: 3, untaggedEnums: 7, enumerators: 26, constants: 1},
		"rdma/erdma-abi.h":             {structs: 5, constants: 1},
		"rdma/irdma-abi.h":             {structs: 14, enums: 1, untaggedEnums: 1, enumerators: 8, constants: 1},
		"rdma/bnxt_re-abi.h":           {structs: 13, enums: 21, untaggedEnums: 2, enumerators: 57, constants: 4},
		"rdma/hns-abi.h":               {structs: 11, enums: 6, untaggedEnums: 2, enumerators: 18},
		"rdma/mana-abi.h":              {structs: 10, enums: 2, enumerators: 2, constants: 1},
		"rdma/ionic-abi.h":             {structs: 10, constants: 12},
		"rdma/cxgb4-abi.h":             {structs: 6, untaggedEnums: 3, enumerators: 4, constants: 1},
		"rdma/mthca-abi.h":             {structs: 9, constants: 2},
		"rdma/ocrdma-abi.h":            {structs: 8, constants: 5},
		"rdma/qedr-abi.h":              {structs: 11, enums: 2, enumerators: 9, constants: 3},
		"rdma/vmw_pvrdma-abi.h": {structs: 16, untaggedStructs: 5, untaggedUnions: 3, enums: 5,
			enumerators: 64, constants: 11},
	}
	r, err := ReadModel(filepath.Join(modelDir, "linux-7.2.json"))
	require.NoError(t, err)
	for i := range r.Headers {
		if h := &r.Headers[i]; !h.Support {
			assert.Equal(t, want[h.Name], countHeader(h), h.Name)
			delete(want, h.Name)
		}
	}
	assert.Empty(t, want, "headers that the model lacks")
}
