// SPDX-License-Identifier: BSD-2-Clause

// Package sdktest tests package s3rdma with aws-sdk-go-v2 and minio-go. It is a separate module, so that these are not
// requirements of goverbs.
package sdktest
