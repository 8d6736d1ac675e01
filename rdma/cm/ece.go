// SPDX-License-Identifier: BSD-2-Clause

package cm

import (
	"github.com/goverbs/goverbs/generated/ibv"
	"github.com/goverbs/goverbs/generated/librdmacm"
	"github.com/goverbs/goverbs/rdma/internal/verberr"
)

// SetLocalECE proposes options to the peer, on an ID without a queue pair.
//
// C: rdma_set_local_ece
//
// Man: rdma_set_local_ece(3)
func (id *ID) SetLocalECE(ece *ibv.ECE) error {
	return id.call("rdma_set_local_ece", func() error { return librdmacm.SetLocalECE(id.c, ece) },
		because{verberr.EINVAL, "only an ID without a queue pair can do this, and the options need a vendor_id"})
}

// RemoteECE returns the options that the peer proposed, on an ID without a queue pair.
//
// C: rdma_get_remote_ece
//
// Man: rdma_get_remote_ece(3)
func (id *ID) RemoteECE() (*ibv.ECE, error) {
	ece := new(ibv.ECE)
	err := id.call("rdma_get_remote_ece", func() error { return librdmacm.GetRemoteECE(id.c, ece) },
		because{verberr.EINVAL, "only an ID without a queue pair can do this"})
	return ece, err
}
