// SPDX-License-Identifier: BSD-2-Clause

// Package tables parses rdma-core's man pages into plain data: validity tables, and the page for each declaration. It
// keeps facts, never the pages' prose.
package tables
