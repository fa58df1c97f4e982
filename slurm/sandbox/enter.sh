#!/bin/bash
# Run a command in another root file system: enter.sh FOLDER COUNT FILE... COMMAND [ARGUMENT...], in a mount
# namespace that nobody else uses. The folder has the operating system (/usr, /etc, /var); all else is the
# machine's, so that run folders, homes and virtual environments keep their paths, and so are COUNT files.
set -eu
root=$1
files=("${@:3:$2}")
shift $(($2 + 2))
mask=$(umask)
umask 022
mount --bind "$root" "$root"
for folder in /*; do
    case $folder in
        /bin | /boot | /etc | /lib* | /lost+found | /sbin | /usr | /var) continue ;;
    esac
    if [ -d "$folder" ] && [ ! -L "$folder" ]; then
        mkdir -p "$root$folder"
        mount --rbind "$folder" "$root$folder"
    fi
done
mount --rbind /var/tmp "$root/var/tmp"
for file in "${files[@]}"; do
    if [ -d "$file" ]; then
        mkdir -p "$root$file"
    elif [ -e "$file" ]; then
        [ -e "$root$file" ] || : >"$root$file"
    else
        continue
    fi
    mount --bind "$file" "$root$file"
done
here=$PWD
cd "$root"
# Not chroot: inside it the kernel makes no user namespaces (unshare(2)), which apptainer needs. The old root
# lies on top of the new one until it is unmounted (pivot_root(2)).
pivot_root . .
umount --lazy .
cd "$here" 2>/dev/null || cd /
umask "$mask"
export PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin
exec "$@"
