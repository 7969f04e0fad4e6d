#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
#
# What Calico's own image starts for the backend vxlan: the node is registered, gets the address of
# its tunnel, and Felix programs it.
set -e
calico-node -startup
NODENAME=$(cat /var/lib/calico/nodename)
export NODENAME FELIX_FELIXHOSTNAME=$NODENAME FELIX_DATASTORETYPE=$DATASTORE_TYPE
calico-node -allocate-tunnel-addrs -allocate-tunnel-addrs-run-once
calico-node -allocate-tunnel-addrs &
calico-node -monitor-addresses &
calico-node -monitor-token &
exec calico-node -felix
