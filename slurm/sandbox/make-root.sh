#!/bin/bash
# Make a root file system with another Debian: make-root.sh FOLDER SUITE MIRROR PACKAGE..., in mount and PID
# namespaces that nobody else uses. Without a MIRROR (an empty word) it is the one in apt's configuration.
# FOLDER appears when all is done.
set -eu
folder=$1 suite=$2 mirror=$3
shift 3
here=$(dirname "$0")
new=$folder.partial
if [ -z "$mirror" ]; then
    # shellcheck disable=SC2016  # apt-get reads the dollar sign
    mirror=$(apt-get indextargets --format '$(REPO_URI)' 'Created-By: Packages' 'Origin: Debian' 'Label: Debian')
    mirror=${mirror%%$'\n'*}
fi
if [ -z "$mirror" ]; then
    echo "apt knows no mirror of Debian on this machine. Type apt-get update, or name one with --mirror." >&2
    exit 1
fi
# debootstrap's wget reads the environment only.
for scheme in http https; do
    proxy=$(apt-config dump --format '%v%n' "Acquire::$scheme::Proxy" | head -n 1)
    if [ -n "$proxy" ] && [ "$proxy" != DIRECT ]; then export "${scheme}_proxy=$proxy"; fi
done
mkdir -p "$(dirname "$folder")"
debootstrap --variant=minbase --include=ca-certificates "$suite" "$new" "$mirror"
apt-config dump Acquire >"$new/etc/apt/apt.conf.d/00machine"
# Nothing in it starts a service: invoke-rc.d(8).
printf '#!/bin/sh\nexit 101\n' >"$new/usr/sbin/policy-rc.d"
chmod 755 "$new/usr/sbin/policy-rc.d"
# Beside a sandbox's own packages: Python with virtual environments, what Triton's server is linked with, and a
# compiler for plugins of Slurm.
more=(curl gcc libc6-dev libfaketime libnuma1 libpython3-dev libslurm-dev make procps python3-venv)
export DEBIAN_FRONTEND=noninteractive
# Without the machine's users, since packages add their own.
install() { unshare --mount bash "$here/enter.sh" "$new" 3 /etc/hosts /etc/resolv.conf /etc/ssl/certs apt-get -q "$@"; }
install update
install install --no-install-recommends -y "$@" "${more[@]}"
install clean
mv "$new" "$folder"
