// SPDX-License-Identifier: BSD-2-Clause

// Package efa adds the driver of Amazon's EFA adapters to package native. Import it for this effect:
//
//	import _ "github.com/goverbs/goverbs/rdma/native/efa"
//
// Package rdma/efa imports it. The driver has those functions of generated/libefa that create and query queue pairs and
// completion queues, and that query devices, address handles and memory regions.
//
// The driver is for amd64 and arm64. No adapter has run it: it was tested over an emulated kernel and compared with
// libefa.
package efa
