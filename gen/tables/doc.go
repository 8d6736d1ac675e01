// SPDX-License-Identifier: BSD-2-Clause

// Package tables parses rdma-core's man pages into plain data: validity tables, and the page that documents each
// declaration. It keeps facts, not the text of the pages.
package tables
